/* LSTM, GRU and RNN, step by step: x [steps, batch, ins], w [directions, gates * size, ins], r [.., size], b [directions,
 * 2 * gates * size], y [steps, directions, batch, size]. y and the last states may be NULL, as b and the first ones may.
 * `turned` has a bit for each backward direction. */
#ifndef PO_RECURRENT_H
#define PO_RECURRENT_H

#include "po_gemm.h"

/* gates = x w' + the input bias, and with `both` the recurrence bias. */
PO_INLINE void po_gates(float *gates, const float *x, const float *w, const float *b, int32_t count, int32_t all,
                        int32_t ins, int32_t both)
{
    int32_t k;
    for (k = 0; k < count; ++k) {
        gates[k] = b == NULL ? 0.0f : both ? b[k] + b[all + k] : b[k];
    }
    po_product(gates, x, w, 1, count, ins, count, 1, ins, 1, 1, ins, 1);
}

PO_INLINE void po_begin(float *state, const float *first, int32_t size)
{
    int32_t k;
    for (k = 0; k < size; ++k) {
        state[k] = first == NULL ? 0.0f : first[k];
    }
}

/* One step of a state h and its cell c from the sums of the gates. */
PO_INLINE void po_lstm_cell(float *h, float *c, const float *gates, int32_t size)
{
    int32_t j;
    for (j = 0; j < size; ++j) {
        c[j] = po_sigmoid(gates[2 * size + j]) * c[j] + po_sigmoid(gates[j]) * po_tanh(gates[3 * size + j]);
        h[j] = po_sigmoid(gates[size + j]) * po_tanh(c[j]);
    }
}

PO_INLINE void po_gru_cell(float *h, const float *gates, int32_t size)
{
    int32_t j;
    for (j = 0; j < size; ++j) {
        const float z = po_sigmoid(gates[j]);
        h[j] = (1.0f - z) * po_tanh(gates[2 * size + j]) + z * h[j];
    }
}

PO_INLINE void po_rnn_cell(float *h, const float *gates, int32_t size, int32_t rectified)
{
    int32_t j;
    for (j = 0; j < size; ++j) {
        h[j] = rectified ? po_max(gates[j], 0.0f) : po_tanh(gates[j]);
    }
}

/* po_gru_reset multiplies the states by the reset gate, for the product with the recurrent weights. po_gru_joined adds the
 * product, times the reset gate, to the candidate's sum. */
PO_INLINE void po_gru_reset(float *extra, const float *gates, const float *hidden, int32_t batch, int32_t size)
{
    int32_t k, j;
    for (k = 0; k < batch; ++k) {
        for (j = 0; j < size; ++j) {
            extra[k * size + j] = po_sigmoid(gates[k * 3 * size + size + j]) * hidden[k * size + j];
        }
    }
}

PO_INLINE void po_gru_joined(float *gates, const float *extra, int32_t batch, int32_t size)
{
    int32_t k, j;
    for (k = 0; k < batch; ++k) {
        float *g = gates + k * 3 * size;
        for (j = 0; j < size; ++j) {
            g[2 * size + j] += po_sigmoid(g[size + j]) * extra[k * size + j];
        }
    }
}

/* y = x, unless y is NULL. */
PO_INLINE void po_kept(float *y, const float *x, int32_t count)
{
    if (y != NULL) {
        memcpy(y, x, (uint32_t)count * sizeof(float));
    }
}

/* scratch: 2 * batch * size + 4 * size floats. Gates in the order input, output, forget, cell. */
PO_INLINE void po_lstm(float *y, float *y_h, float *y_c, const float *x, const float *w, const float *r,
                       const float *b, const float *h_first, const float *c_first, float *scratch, int32_t steps,
                       int32_t batch, int32_t ins, int32_t size, int32_t directions, int32_t turned)
{
    float *hidden = scratch, *cells = scratch + batch * size, *gates = scratch + 2 * batch * size;
    int32_t d, s, n;
    for (d = 0; d < directions; ++d) {
        const float *bias = b == NULL ? NULL : b + d * 8 * size;
        po_begin(hidden, h_first == NULL ? NULL : h_first + d * batch * size, batch * size);
        po_begin(cells, c_first == NULL ? NULL : c_first + d * batch * size, batch * size);
        for (s = 0; s < steps; ++s) {
            const int32_t t = (turned >> d) % 2 == 1 ? steps - 1 - s : s;
            for (n = 0; n < batch; ++n) {
                float *h = hidden + n * size, *c = cells + n * size;
                po_gates(gates, x + (t * batch + n) * ins, w + d * 4 * size * ins, bias, 4 * size, 4 * size, ins, 1);
                po_product(gates, h, r + d * 4 * size * size, 1, 4 * size, size, 4 * size, 1, size, 1, 1, size, 1);
                po_lstm_cell(h, c, gates, size);
                po_kept(y == NULL ? NULL : y + ((t * directions + d) * batch + n) * size, h, size);
            }
        }
        po_kept(y_h == NULL ? NULL : y_h + d * batch * size, hidden, batch * size);
        po_kept(y_c == NULL ? NULL : y_c + d * batch * size, cells, batch * size);
    }
}

/* scratch: batch * size + 4 * size floats. Gates in the order update, reset, hidden. With `after`, the reset gate
 * multiplies the product with the recurrent weights (linear_before_reset). */
PO_INLINE void po_gru(float *y, float *y_h, const float *x, const float *w, const float *r, const float *b,
                      const float *h_first, float *scratch, int32_t steps, int32_t batch, int32_t ins, int32_t size,
                      int32_t directions, int32_t turned, int32_t after)
{
    float *hidden = scratch, *gates = scratch + batch * size, *extra = scratch + (batch + 3) * size;
    int32_t d, s, n;
    for (d = 0; d < directions; ++d) {
        const float *bias = b == NULL ? NULL : b + d * 6 * size;
        const float *weights = w + d * 3 * size * ins;
        const float *again = r + d * 3 * size * size;
        po_begin(hidden, h_first == NULL ? NULL : h_first + d * batch * size, batch * size);
        for (s = 0; s < steps; ++s) {
            const int32_t t = (turned >> d) % 2 == 1 ? steps - 1 - s : s;
            for (n = 0; n < batch; ++n) {
                const float *in = x + (t * batch + n) * ins;
                float *h = hidden + n * size;
                po_gates(gates, in, weights, bias, 2 * size, 3 * size, ins, 1);
                po_product(gates, h, again, 1, 2 * size, size, 2 * size, 1, size, 1, 1, size, 1);
                po_gates(gates + 2 * size, in, weights + 2 * size * ins, bias == NULL ? NULL : bias + 2 * size, size,
                         3 * size, ins, !after);
                if (after) {
                    po_begin(extra, bias == NULL ? NULL : bias + 5 * size, size);
                    po_product(extra, h, again + 2 * size * size, 1, size, size, size, 1, size, 1, 1, size, 1);
                    po_gru_joined(gates, extra, 1, size);
                } else {
                    po_gru_reset(extra, gates, h, 1, size);
                    po_product(gates + 2 * size, extra, again + 2 * size * size, 1, size, size, size, 1, size, 1, 1,
                               size, 1);
                }
                po_gru_cell(h, gates, size);
                po_kept(y == NULL ? NULL : y + ((t * directions + d) * batch + n) * size, h, size);
            }
        }
        po_kept(y_h == NULL ? NULL : y_h + d * batch * size, hidden, batch * size);
    }
}

/* scratch: batch * size + size floats. */
PO_INLINE void po_rnn(float *y, float *y_h, const float *x, const float *w, const float *r, const float *b,
                      const float *h_first, float *scratch, int32_t steps, int32_t batch, int32_t ins, int32_t size,
                      int32_t directions, int32_t turned, int32_t rectified)
{
    float *hidden = scratch, *gates = scratch + batch * size;
    int32_t d, s, n;
    for (d = 0; d < directions; ++d) {
        po_begin(hidden, h_first == NULL ? NULL : h_first + d * batch * size, batch * size);
        for (s = 0; s < steps; ++s) {
            const int32_t t = (turned >> d) % 2 == 1 ? steps - 1 - s : s;
            for (n = 0; n < batch; ++n) {
                float *h = hidden + n * size;
                po_gates(gates, x + (t * batch + n) * ins, w + d * size * ins, b == NULL ? NULL : b + d * 2 * size, size,
                         size, ins, 1);
                po_product(gates, h, r + d * size * size, 1, size, size, size, 1, size, 1, 1, size, 1);
                po_rnn_cell(h, gates, size, rectified);
                po_kept(y == NULL ? NULL : y + ((t * directions + d) * batch + n) * size, h, size);
            }
        }
        po_kept(y_h == NULL ? NULL : y_h + d * batch * size, hidden, batch * size);
    }
}

#endif
