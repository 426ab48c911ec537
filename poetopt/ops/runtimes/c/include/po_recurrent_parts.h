/* Recurrent layers in parts: some gates of all steps or of one, and the gradients of a direction, from the last step back.
 *
 * Gates of all steps are [steps, batch, gates * size], in the order of time. w, r and b begin with the first gate of the
 * call. `y` and `dy` are [steps, directions, batch, size], from the call's direction on; `apart` is the distance of two
 * steps. A state that is NULL is zero. */
#ifndef PO_RECURRENT_PARTS_H
#define PO_RECURRENT_PARTS_H

#include "po_recurrent.h"

/* `count` elements of each of `rows` rows, which are `apart` elements apart. */
PO_INLINE void po_gates_filled(float *gates, const float *b, int32_t rows, int32_t count, int32_t apart)
{
    int32_t m;
    for (m = 0; m < rows; ++m) {
        po_begin(gates + m * apart, b, count);
    }
}

/* gates = x w' + b + more, `count` of `all` gates for `rows` rows of x; b and `more` may be NULL. */
PO_INLINE void po_gates_of(float *gates, const float *x, const float *w, const float *b, const float *more, int32_t rows,
                           int32_t count, int32_t all, int32_t ins)
{
    int32_t m, k;
    po_gates_filled(gates, b, rows, count, all);
    for (m = 0; m < rows && more != NULL; ++m) {
        for (k = 0; k < count; ++k) {
            gates[m * all + k] += more[k];
        }
    }
    po_product(gates, x, w, rows, count, ins, all, 1, ins, 1, 1, ins, 1);
}

/* The states before step t. */
PO_INLINE const float *po_states(const float *y, const float *first, int32_t t, int32_t steps, int32_t apart,
                                 int32_t turned)
{
    if (t == (turned ? steps - 1 : 0)) {
        return first;
    }
    return y + (turned ? t + 1 : t - 1) * apart;
}

/* gates += states before each step, r'. */
PO_INLINE void po_gates_again(float *gates, const float *y, const float *first, const float *r, int32_t steps,
                              int32_t batch, int32_t count, int32_t all, int32_t size, int32_t apart, int32_t turned)
{
    int32_t t;
    for (t = 0; t < steps; ++t) {
        const float *h = po_states(y, first, t, steps, apart, turned);
        if (h != NULL) {
            po_product(gates + t * batch * all, h, r, batch, count, size, all, 1, size, 1, 1, size, 1);
        }
    }
}

/* dr = gates' times the states before each step, of `count` gates. */
PO_INLINE void po_gates_by_states(float *dr, const float *gates, const float *y, const float *first, int32_t steps,
                                  int32_t batch, int32_t count, int32_t all, int32_t size, int32_t apart, int32_t turned)
{
    int32_t t;
    memset(dr, 0, (uint32_t)(count * size) * sizeof(float));
    for (t = 0; t < steps; ++t) {
        const float *h = po_states(y, first, t, steps, apart, turned);
        if (h != NULL) {
            po_product(dr, gates + t * batch * all, h, count, size, batch, size, 1, 1, all, size, 1, 1);
        }
    }
}

/* sums = the columns of `rows` rows, each `apart` from the next. */
PO_INLINE void po_gate_sums(float *sums, const float *gates, int32_t rows, int32_t count, int32_t apart)
{
    int32_t m, k;
    for (k = 0; k < count; ++k) {
        float sum = 0.0f;
        for (m = 0; m < rows; ++m) {
            sum += gates[m * apart + k];
        }
        sums[k] = sum;
    }
}

/* Replaces the gates' sums by their values, and computes the cells after each step. */
PO_INLINE void po_lstm_again(float *gates, float *cells, const float *first, int32_t steps, int32_t batch, int32_t size,
                             int32_t turned)
{
    int32_t s, k, j;
    for (s = 0; s < steps; ++s) {
        const int32_t t = turned ? steps - 1 - s : s;
        const float *before = po_states(cells, first, t, steps, batch * size, turned);
        for (k = 0; k < batch; ++k) {
            float *g = gates + (t * batch + k) * 4 * size;
            for (j = 0; j < size; ++j) {
                const int32_t at = k * size + j;
                g[j] = po_sigmoid(g[j]);
                g[size + j] = po_sigmoid(g[size + j]);
                g[2 * size + j] = po_sigmoid(g[2 * size + j]);
                g[3 * size + j] = po_tanh(g[3 * size + j]);
                cells[t * batch * size + at] = g[2 * size + j] * (before == NULL ? 0.0f : before[at]) + g[j] * g[3 * size + j];
            }
        }
    }
}

/* Replaces the values of a step's gates by their gradients, and computes that of the cell before; dh is the gradient of
 * the step's state from later steps. */
PO_INLINE void po_lstm_back(float *gates, float *dc, const float *dh, const float *dy, const float *cells,
                            const float *first, int32_t t, int32_t steps, int32_t batch, int32_t size, int32_t turned)
{
    const float *before = po_states(cells, first, t, steps, batch * size, turned);
    int32_t k, j;
    for (k = 0; k < batch; ++k) {
        float *g = gates + k * 4 * size;
        for (j = 0; j < size; ++j) {
            const int32_t at = k * size + j;
            const float i = g[j], o = g[size + j], f = g[2 * size + j], n = g[3 * size + j];
            const float bent = po_tanh(cells[t * batch * size + at]);
            const float arriving = dy == NULL ? dh[at] : dy[at] + dh[at];
            const float cell = dc[at] + arriving * (o * (1.0f - bent * bent));
            g[j] = cell * (n * (i * (1.0f - i)));
            g[size + j] = arriving * (bent * (o * (1.0f - o)));
            g[2 * size + j] = cell * ((before == NULL ? 0.0f : before[at]) * (f * (1.0f - f)));
            g[3 * size + j] = cell * (i * (1.0f - n * n));
            dc[at] = cell * f;
        }
    }
}

/* Replaces the sums of update and reset gates by their values; with `extra`, also computes the states after the reset
 * gate. */
PO_INLINE void po_gru_open(float *gates, float *extra, const float *y, const float *first, int32_t steps, int32_t batch,
                           int32_t size, int32_t apart, int32_t turned)
{
    int32_t t, k, j;
    for (t = 0; t < steps; ++t) {
        const float *before = po_states(y, first, t, steps, apart, turned);
        for (k = 0; k < batch; ++k) {
            float *g = gates + (t * batch + k) * 3 * size;
            for (j = 0; j < size; ++j) {
                g[j] = po_sigmoid(g[j]);
                g[size + j] = po_sigmoid(g[size + j]);
                if (extra != NULL) {
                    extra[(t * batch + k) * size + j] = before == NULL ? 0.0f : g[size + j] * before[k * size + j];
                }
            }
        }
    }
}

/* Replaces the candidate's sum, plus `extra` times the reset gate, by its value; `extra` may be NULL. */
PO_INLINE void po_gru_again(float *gates, const float *extra, int32_t rows, int32_t size)
{
    int32_t m, j;
    for (m = 0; m < rows; ++m) {
        float *g = gates + m * 3 * size;
        for (j = 0; j < size; ++j) {
            const float more = extra == NULL ? 0.0f : g[size + j] * extra[m * size + j];
            g[2 * size + j] = po_tanh(g[2 * size + j] + more);
        }
    }
}

/* Replaces the values of a step's update gate and candidate by their gradients; `kept` gets the gradient of the state
 * that bypasses the gates. With `extra`, the factor of the reset gate, it also replaces that gate's value by its gradient,
 * and `extra` by that of the product. */
PO_INLINE void po_gru_back(float *gates, float *extra, float *kept, const float *dh, const float *dy,
                           const float *before, int32_t batch, int32_t size)
{
    int32_t k, j;
    for (k = 0; k < batch; ++k) {
        float *g = gates + k * 3 * size;
        for (j = 0; j < size; ++j) {
            const int32_t at = k * size + j;
            const float z = g[j], r = g[size + j], n = g[2 * size + j], h = before == NULL ? 0.0f : before[at];
            const float arriving = dy == NULL ? dh[at] : dy[at] + dh[at];
            const float into = arriving * ((1.0f - z) * (1.0f - n * n));
            g[j] = arriving * ((h - n) * (z * (1.0f - z)));
            g[2 * size + j] = into;
            kept[at] = arriving * z;
            if (extra != NULL) {
                g[size + j] = into * (extra[at] * (r * (1.0f - r)));
                extra[at] = into * r;
            }
        }
    }
}

/* The same for the reset gate, from the gradient `back` of the states after it. */
PO_INLINE void po_gru_reset_back(float *gates, float *kept, const float *back, const float *before, int32_t batch,
                                 int32_t size)
{
    int32_t k, j;
    for (k = 0; k < batch; ++k) {
        float *g = gates + k * 3 * size;
        for (j = 0; j < size; ++j) {
            const int32_t at = k * size + j;
            const float r = g[size + j];
            kept[at] += back[at] * r;
            g[size + j] = before == NULL ? 0.0f : back[at] * (before[at] * (r * (1.0f - r)));
        }
    }
}

/* The gradient of a step's sums, from that of its state y. */
PO_INLINE void po_rnn_back(float *gates, const float *dh, const float *dy, const float *y, int32_t count,
                           int32_t rectified)
{
    int32_t k;
    for (k = 0; k < count; ++k) {
        const float slope = rectified ? (y[k] > 0.0f ? 1.0f : 0.0f) : 1.0f - y[k] * y[k];
        gates[k] = (dy == NULL ? dh[k] : dy[k] + dh[k]) * slope;
    }
}

PO_INLINE void po_joined(float *y, const float *x, int32_t count)
{
    int32_t k;
    for (k = 0; k < count; ++k) {
        y[k] += x[k];
    }
}

#endif
