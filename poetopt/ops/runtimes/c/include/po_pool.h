/* Pooling of planes [planes, height, width] to [planes, rows, columns], and its gradients. */
#ifndef PO_POOL_H
#define PO_POOL_H

#include "po_conv.h"

/* The maximum of each window; `where`, if not NULL, gets the index of the first maximum. x may be a part of a tensor, from
 * its element `first` on; indices are those of the tensor. */
#define PO_MAX_POOL(NAME, INDEX)                                                                                       \
    PO_INLINE void NAME(float *y, INDEX *where, const float *x, int32_t planes, int32_t rows, int32_t columns,         \
                        int32_t height, int32_t width, int32_t kh, int32_t kw, int32_t row_step, int32_t col_step,     \
                        int32_t row_tap, int32_t col_tap, int32_t above, int32_t left, int32_t first)                  \
    {                                                                                                                  \
        int32_t p, i, j, r, s;                                                                                         \
        for (p = 0; p < planes; ++p) {                                                                                 \
            for (i = 0; i < rows; ++i) {                                                                               \
                for (j = 0; j < columns; ++j) {                                                                        \
                    const int32_t top = i * row_step - above, side = j * col_step - left;                              \
                    const int32_t out = (p * rows + i) * columns + j;                                                  \
                    float most = -INFINITY;                                                                            \
                    int32_t found = -1;                                                                                \
                    for (r = po_first_tap(top, row_tap, kh, height); r < po_last_tap(top, row_tap, kh, height); ++r) { \
                        for (s = po_first_tap(side, col_tap, kw, width); s < po_last_tap(side, col_tap, kw, width);    \
                             ++s) {                                                                                    \
                            const int32_t at = (p * height + top + r * row_tap) * width + side + s * col_tap;          \
                            if (x[at] > most || found < 0) {                                                           \
                                most = x[at];                                                                          \
                                found = at;                                                                            \
                            }                                                                                          \
                        }                                                                                              \
                    }                                                                                                  \
                    y[out] = most;                                                                                     \
                    if (where != NULL) {                                                                               \
                        where[out] = found + first;                                                                    \
                    }                                                                                                  \
                }                                                                                                      \
            }                                                                                                          \
        }                                                                                                              \
    }

PO_MAX_POOL(po_max_pool, int32_t)
PO_MAX_POOL(po_max_pool_int64, int64_t)

/* Adds each gradient at the position of its maximum. dx may be a part of a tensor, from its element `first` on. */
#define PO_MAX_POOL_GRADIENT(NAME, INDEX)                                                                              \
    PO_INLINE void NAME(float *dx, const float *dy, const INDEX *where, int32_t size, int32_t outputs, int32_t first)  \
    {                                                                                                                  \
        int32_t i;                                                                                                     \
        for (i = 0; i < size; ++i) {                                                                                   \
            dx[i] = 0.0f;                                                                                              \
        }                                                                                                              \
        for (i = 0; i < outputs; ++i) {                                                                                \
            dx[where[i] - first] += dy[i];                                                                             \
        }                                                                                                              \
    }

PO_MAX_POOL_GRADIENT(po_max_pool_gradient, int32_t)
PO_MAX_POOL_GRADIENT(po_max_pool_gradient_int64, int64_t)

/* Returns the number of elements of a line in a window: those of x, or with pads, up to `after` elements after x. */
PO_INLINE int32_t po_window_count(int32_t at, int32_t tap, int32_t taps, int32_t size, int32_t before, int32_t after,
                                  int32_t padded)
{
    return padded ? po_last_tap(at + before, tap, taps, before + size + after)
                        - po_first_tap(at + before, tap, taps, before + size + after)
                  : po_last_tap(at, tap, taps, size) - po_first_tap(at, tap, taps, size);
}

/* The mean of each window. */
PO_INLINE void po_average_pool(float *y, const float *x, int32_t planes, int32_t rows, int32_t columns, int32_t height,
                               int32_t width, int32_t kh, int32_t kw, int32_t row_step, int32_t col_step,
                               int32_t row_tap, int32_t col_tap, int32_t above, int32_t left, int32_t below,
                               int32_t right, int32_t padded)
{
    int32_t p, i, j, r, s;
    for (p = 0; p < planes; ++p) {
        for (i = 0; i < rows; ++i) {
            const int32_t top = i * row_step - above;
            const int32_t low = po_first_tap(top, row_tap, kh, height), high = po_last_tap(top, row_tap, kh, height);
            for (j = 0; j < columns; ++j) {
                const int32_t side = j * col_step - left;
                const int32_t near = po_first_tap(side, col_tap, kw, width);
                const int32_t far = po_last_tap(side, col_tap, kw, width);
                const int32_t count = po_window_count(top, row_tap, kh, height, above, below, padded)
                                      * po_window_count(side, col_tap, kw, width, left, right, padded);
                float sum = 0.0f;
                for (r = low; r < high; ++r) {
                    float part = 0.0f;
                    for (s = near; s < far; ++s) {
                        part += x[(p * height + top + r * row_tap) * width + side + s * col_tap];
                    }
                    sum += part;
                }
                y[(p * rows + i) * columns + j] = sum / (float)po_larger(count, 1);
            }
        }
    }
}

/* `height` rows of dx, from row `from` of `whole` on, after `before` rows of pads; `above` is relative to the first rows
 * of dy and dx. */
PO_INLINE void po_average_pool_gradient_rows(float *dx, const float *dy, int32_t planes, int32_t rows, int32_t columns,
                                             int32_t height, int32_t width, int32_t kh, int32_t kw, int32_t row_step,
                                             int32_t col_step, int32_t row_tap, int32_t col_tap, int32_t above,
                                             int32_t left, int32_t below, int32_t right, int32_t padded, int32_t from,
                                             int32_t whole, int32_t before)
{
    int32_t p, i, j, r, s;
    for (i = 0; i < planes * height * width; ++i) {
        dx[i] = 0.0f;
    }
    for (p = 0; p < planes; ++p) {
        for (i = 0; i < rows; ++i) {
            const int32_t top = i * row_step - above;
            const int32_t low = po_first_tap(top, row_tap, kh, height), high = po_last_tap(top, row_tap, kh, height);
            for (j = 0; j < columns; ++j) {
                const int32_t side = j * col_step - left;
                const int32_t near = po_first_tap(side, col_tap, kw, width);
                const int32_t far = po_last_tap(side, col_tap, kw, width);
                const int32_t count = po_window_count(top + from, row_tap, kh, whole, before, below, padded)
                                      * po_window_count(side, col_tap, kw, width, left, right, padded);
                const float share = dy[(p * rows + i) * columns + j] / (float)po_larger(count, 1);
                for (r = low; r < high; ++r) {
                    for (s = near; s < far; ++s) {
                        dx[(p * height + top + r * row_tap) * width + side + s * col_tap] += share;
                    }
                }
            }
        }
    }
}

PO_INLINE void po_average_pool_gradient(float *dx, const float *dy, int32_t planes, int32_t rows, int32_t columns,
                                        int32_t height, int32_t width, int32_t kh, int32_t kw, int32_t row_step,
                                        int32_t col_step, int32_t row_tap, int32_t col_tap, int32_t above,
                                        int32_t left, int32_t below, int32_t right, int32_t padded)
{
    po_average_pool_gradient_rows(dx, dy, planes, rows, columns, height, width, kh, kw, row_step, col_step, row_tap,
                                  col_tap, above, left, below, right, padded, 0, height, above);
}

#endif
