/* Direct convolutions: they unfold nothing, and need no memory but the operands.
 *
 * po_conv computes one image of one group. It writes `outs` planes of `rows` by `columns`, with element (o, i, j) at
 * y[o * y_plane + i * y_row + j * y_col]. Each is a sum over `ins` planes of x (`height` by `width`, at a distance of
 * `plane`) and over `kh` by `kw` taps:
 *
 *     sum of x[c][first_row + i * row_step + r * row_tap][first_col + j * col_step + s * col_tap] * w[o, c, r, s]
 *
 * with w[o, c, r, s] at w[o * w_out + c * w_in + r * w_row + s * w_col]. Elements outside of x are 0. With negative tap
 * steps it computes the gradient by x. Terms are summed in parts of some PO_PART terms (whole planes of taps); a part's
 * sum is then added to y. If `began`, y already has sums of other planes. If `goes_on`, the terms are at most one part,
 * and are added to y one by one. */
#ifndef PO_CONV_H
#define PO_CONV_H

#include "po_gemm.h"

/* Returns element `column` of a row, or 0 outside of it. */
PO_INLINE float po_padded(const float *row, int32_t column, int32_t width)
{
    return column >= 0 && column < width ? row[column] : 0.0f;
}

/* Adds a sum to y, or starts y with the sum and the bias. */
PO_INLINE void po_start(float *y, float sum, float bias, int32_t from) { *y = from == 0 ? sum + bias : *y + sum; }

/* The first tap t with 0 <= at + t * tap < size, and the one after the last. */
PO_INLINE int32_t po_first_tap(int32_t at, int32_t tap, int32_t taps, int32_t size)
{
    const int32_t first = tap > 0 ? po_ceil_div(-at, tap) : po_ceil_div(at - size + 1, -tap);
    return po_smaller(po_larger(first, 0), taps);
}

PO_INLINE int32_t po_last_tap(int32_t at, int32_t tap, int32_t taps, int32_t size)
{
    const int32_t last = tap > 0 ? po_ceil_div(size - at, tap) : po_ceil_div(at + 1, -tap);
    return po_larger(po_smaller(last, taps), 0);
}

/* Returns whether four elements, `step` apart, all lie in a row. */
PO_INLINE int32_t po_whole(int32_t at, int32_t step, int32_t width) { return at >= 0 && at + 3 * step < width; }

/* Four outputs and four columns. If `inside`, no tap leaves the row; otherwise each tap is checked. */
PO_INLINE void po_conv_4x4(float *y, const float *x, const float *w, const float *bias, int32_t from, int32_t to,
                           int32_t began, int32_t goes_on, int32_t y_plane, int32_t y_col, int32_t plane, int32_t width, int32_t low,
                           int32_t high, int32_t kw, int32_t w_out, int32_t w_in, int32_t w_row, int32_t w_col,
                           int32_t row, int32_t row_tap, int32_t column, int32_t col_step, int32_t col_tap,
                           int32_t inside)
{
    PO_TILE_ROW(0, y, y_col, goes_on);
    PO_TILE_ROW(1, y + y_plane, y_col, goes_on);
    PO_TILE_ROW(2, y + 2 * y_plane, y_col, goes_on);
    PO_TILE_ROW(3, y + 3 * y_plane, y_col, goes_on);
    int32_t c, r, s;
    for (c = from; c < to; ++c) {
        for (r = low; r < high; ++r) {
            const float *line = x + c * plane + (row + r * row_tap) * width;
            const float *v = w + c * w_in + r * w_row;
            int32_t at = column;
            PO_UNROLL(4)
            for (s = 0; s < kw; ++s) {
                const int32_t whole = inside || po_whole(at, col_step, width);
                const float x0 = whole ? line[at] : po_padded(line, at, width);
                const float x1 = whole ? line[at + col_step] : po_padded(line, at + col_step, width);
                const float x2 = whole ? line[at + 2 * col_step] : po_padded(line, at + 2 * col_step, width);
                const float x3 = whole ? line[at + 3 * col_step] : po_padded(line, at + 3 * col_step, width);
                PO_TILE_ADD(0, v[0], x0, x1, x2, x3);
                PO_APART;
                PO_TILE_ADD(1, v[w_out], x0, x1, x2, x3);
                PO_APART;
                PO_TILE_ADD(2, v[2 * w_out], x0, x1, x2, x3);
                PO_APART;
                PO_TILE_ADD(3, v[3 * w_out], x0, x1, x2, x3);
                PO_APART;
                v += w_col;
                at += col_tap;
            }
        }
    }
    {
        const float b0 = bias == NULL ? 0.0f : bias[0], b1 = bias == NULL ? 0.0f : bias[1];
        const float b2 = bias == NULL ? 0.0f : bias[2], b3 = bias == NULL ? 0.0f : bias[3];
        PO_TILE_PUT(0, po_start, y, y_col, b0, from + began);
        PO_TILE_PUT(1, po_start, y + y_plane, y_col, b1, from + began);
        PO_TILE_PUT(2, po_start, y + 2 * y_plane, y_col, b2, from + began);
        PO_TILE_PUT(3, po_start, y + 3 * y_plane, y_col, b3, from + began);
    }
}

/* One output and four columns. */
PO_INLINE void po_conv_1x4(float *y, const float *x, const float *w, const float *bias, int32_t from, int32_t to,
                           int32_t began, int32_t goes_on, int32_t y_col, int32_t plane, int32_t width, int32_t low, int32_t high,
                           int32_t kw, int32_t w_in, int32_t w_row, int32_t w_col, int32_t row, int32_t row_tap,
                           int32_t column, int32_t col_step, int32_t col_tap, int32_t inside)
{
    const float b = bias == NULL ? 0.0f : bias[0];
    float t0 = po_from(y, goes_on), t1 = po_from(y + y_col, goes_on);
    float t2 = po_from(y + 2 * y_col, goes_on), t3 = po_from(y + 3 * y_col, goes_on);
    int32_t c, r, s;
    for (c = from; c < to; ++c) {
        for (r = low; r < high; ++r) {
            const float *line = x + c * plane + (row + r * row_tap) * width;
            const float *v = w + c * w_in + r * w_row;
            int32_t at = column;
            PO_UNROLL(3)
            for (s = 0; s < kw; ++s) {
                const float u = v[s * w_col];
                if (inside || po_whole(at, col_step, width)) {
                    t0 += u * line[at];
                    t1 += u * line[at + col_step];
                    t2 += u * line[at + 2 * col_step];
                    t3 += u * line[at + 3 * col_step];
                } else {
                    t0 += u * po_padded(line, at, width);
                    t1 += u * po_padded(line, at + col_step, width);
                    t2 += u * po_padded(line, at + 2 * col_step, width);
                    t3 += u * po_padded(line, at + 3 * col_step, width);
                }
                at += col_tap;
            }
        }
    }
    po_start(y, t0, b, from + began);
    po_start(y + y_col, t1, b, from + began);
    po_start(y + 2 * y_col, t2, b, from + began);
    po_start(y + 3 * y_col, t3, b, from + began);
}

/* Four outputs and one column. */
PO_INLINE void po_conv_4x1(float *y, const float *x, const float *w, const float *bias, int32_t from, int32_t to,
                           int32_t began, int32_t goes_on, int32_t y_plane, int32_t plane, int32_t width, int32_t low,
                           int32_t high, int32_t kw, int32_t w_out, int32_t w_in, int32_t w_row, int32_t w_col,
                           int32_t row, int32_t row_tap, int32_t column, int32_t col_tap)
{
    const int32_t left = po_first_tap(column, col_tap, kw, width), right = po_last_tap(column, col_tap, kw, width);
    float t0 = po_from(y, goes_on), t1 = po_from(y + y_plane, goes_on);
    float t2 = po_from(y + 2 * y_plane, goes_on), t3 = po_from(y + 3 * y_plane, goes_on);
    int32_t c, r, s;
    for (c = from; c < to; ++c) {
        for (r = low; r < high; ++r) {
            const float *line = x + c * plane + (row + r * row_tap) * width + column;
            const float *v = w + c * w_in + r * w_row;
            for (s = left; s < right; ++s) {
                const float u = line[s * col_tap];
                t0 += v[s * w_col] * u;
                t1 += v[s * w_col + w_out] * u;
                t2 += v[s * w_col + 2 * w_out] * u;
                t3 += v[s * w_col + 3 * w_out] * u;
            }
        }
    }
    po_start(y, t0, bias == NULL ? 0.0f : bias[0], from + began);
    po_start(y + y_plane, t1, bias == NULL ? 0.0f : bias[1], from + began);
    po_start(y + 2 * y_plane, t2, bias == NULL ? 0.0f : bias[2], from + began);
    po_start(y + 3 * y_plane, t3, bias == NULL ? 0.0f : bias[3], from + began);
}

/* One output and one column. */
PO_INLINE void po_conv_1x1(float *y, const float *x, const float *w, const float *bias, int32_t from, int32_t to,
                           int32_t began, int32_t goes_on, int32_t plane, int32_t width, int32_t low, int32_t high, int32_t kw,
                           int32_t w_in, int32_t w_row, int32_t w_col, int32_t row, int32_t row_tap, int32_t column,
                           int32_t col_tap)
{
    const int32_t left = po_first_tap(column, col_tap, kw, width), right = po_last_tap(column, col_tap, kw, width);
    float t = po_from(y, goes_on);
    int32_t c, r, s;
    for (c = from; c < to; ++c) {
        for (r = low; r < high; ++r) {
            const float *line = x + c * plane + (row + r * row_tap) * width + column;
            const float *v = w + c * w_in + r * w_row;
            for (s = left; s < right; ++s) {
                t += v[s * w_col] * line[s * col_tap];
            }
        }
    }
    po_start(y, t, bias == NULL ? 0.0f : bias[0], from + began);
}

PO_INLINE void po_conv(float *y, const float *x, const float *w, const float *bias, int32_t outs, int32_t ins,
                       int32_t rows, int32_t columns, int32_t y_plane, int32_t y_row, int32_t y_col, int32_t plane,
                       int32_t height, int32_t width, int32_t kh, int32_t kw, int32_t w_out, int32_t w_in,
                       int32_t w_row, int32_t w_col, int32_t first_row, int32_t row_step, int32_t row_tap,
                       int32_t first_col, int32_t col_step, int32_t col_tap, int32_t began, int32_t goes_on)
{
    const int32_t part = po_larger(1, PO_PART / po_larger(1, kh * kw));
    /* extent of the taps to the left and to the right of a column */
    const int32_t back = po_smaller(0, (kw - 1) * col_tap), ahead = po_larger(0, (kw - 1) * col_tap);
    const int32_t wide = columns >= 4;
    /* if this is a constant, the compiler omits the code of the other case */
    const int32_t padless = first_col + back >= 0 && first_col + (columns - 1) * col_step + ahead < width;
    int32_t o, i, j, c;
    for (i = 0; i < rows; ++i) {
        const int32_t row = first_row + i * row_step;
        const int32_t low = po_first_tap(row, row_tap, kh, height), high = po_last_tap(row, row_tap, kh, height);
        for (o = 0; o < outs;) {
            const int32_t many = wide && (outs % 4 == 0 || o + 4 <= outs);
            const float *v = w + o * w_out;
            const float *b = bias == NULL ? NULL : bias + o;
            for (j = 0; j < columns; j += wide ? 4 : 1) {
                /* the last four columns may overlap those before, and compute the same sums again */
                const int32_t start = wide ? po_smaller(j, columns - 4) : j, column = first_col + start * col_step;
                const int32_t inside = padless || (column + back >= 0 && column + 3 * col_step + ahead < width);
                float *at = y + o * y_plane + i * y_row + start * y_col;
                /* sums in y must not be added to twice; and fewer than four columns are left */
                if (start < j && (began || goes_on || columns - j == 1)) {
                    int32_t n;
                    for (n = j; n < columns; ++n) {
                        for (c = 0; c < ins; c += part) {
                            float *one = y + o * y_plane + i * y_row + n * y_col;
                            const int32_t to = po_smaller(ins, c + part), there = first_col + n * col_step;
                            if (many) {
                                po_conv_4x1(one, x, v, b, c, to, began, goes_on, y_plane, plane, width, low, high, kw,
                                            w_out, w_in, w_row, w_col, row, row_tap, there, col_tap);
                            } else {
                                po_conv_1x1(one, x, v, b, c, to, began, goes_on, plane, width, low, high, kw, w_in,
                                            w_row, w_col, row, row_tap, there, col_tap);
                            }
                        }
                    }
                    break;
                }
                for (c = 0; c < ins; c += part) {
                    const int32_t to = po_smaller(ins, c + part);
                    if (many && inside) {
                        po_conv_4x4(at, x, v, b, c, to, began, goes_on, y_plane, y_col, plane, width, low, high, kw, w_out,
                                    w_in, w_row, w_col, row, row_tap, column, col_step, col_tap, 1);
                    } else if (many) {
                        po_conv_4x4(at, x, v, b, c, to, began, goes_on, y_plane, y_col, plane, width, low, high, kw, w_out,
                                    w_in, w_row, w_col, row, row_tap, column, col_step, col_tap, 0);
                    } else if (wide && inside) {
                        po_conv_1x4(at, x, v, b, c, to, began, goes_on, y_col, plane, width, low, high, kw, w_in, w_row, w_col,
                                    row, row_tap, column, col_step, col_tap, 1);
                    } else if (wide) {
                        po_conv_1x4(at, x, v, b, c, to, began, goes_on, y_col, plane, width, low, high, kw, w_in, w_row, w_col,
                                    row, row_tap, column, col_step, col_tap, 0);
                    } else {
                        po_conv_1x1(at, x, v, b, c, to, began, goes_on, plane, width, low, high, kw, w_in, w_row, w_col, row,
                                    row_tap, column, col_tap);
                    }
                }
            }
            o += many ? 4 : 1;
        }
    }
}

/* The same convolution for planes `from` to `from` + `count` of `ins`; x and w begin with these planes. Between calls,
 * `sums`, laid out like y, has the sums of the current part. */
PO_INLINE void po_conv_piece(float *y, float *sums, const float *x, const float *w, const float *bias, int32_t outs,
                             int32_t ins, int32_t from, int32_t count, int32_t rows, int32_t columns, int32_t y_plane,
                             int32_t y_row, int32_t y_col, int32_t height, int32_t width, int32_t kh, int32_t kw,
                             int32_t w_out, int32_t w_in, int32_t w_row, int32_t w_col, int32_t first_row,
                             int32_t row_step, int32_t row_tap, int32_t first_col, int32_t col_step, int32_t col_tap)
{
    const int32_t part = po_larger(1, PO_PART / po_larger(1, kh * kw));
    int32_t c = 0, o, i, j;
    while (c < count) {
        const int32_t within = (from + c) % part, end = po_smaller(count, c + part - within);
        po_conv(sums, x + c * height * width, w + c * w_in, NULL, outs, end - c, rows, columns, y_plane, y_row, y_col,
                height * width, height, width, kh, kw, w_out, w_in, w_row, w_col, first_row, row_step, row_tap,
                first_col, col_step, col_tap, 0, within > 0);
        if ((from + end) % part == 0 || from + end == ins) {
            for (o = 0; o < outs; ++o) {
                for (i = 0; i < rows; ++i) {
                    for (j = 0; j < columns; ++j) {
                        const int32_t at = o * y_plane + i * y_row + j * y_col;
                        po_start(y + at, sums[at], bias == NULL ? 0.0f : bias[o], from + c - within);
                    }
                }
            }
        }
        c = end;
    }
}

/* A convolution with kernels of 1 by 1 and steps of 1, as a matrix product. Planes are y_plane and x_plane apart. */
PO_INLINE void po_pointwise_image(float *y, const float *x, const float *w, const float *bias, int32_t outs,
                                  int32_t ins, int32_t size, int32_t y_plane, int32_t x_plane, int32_t w_out,
                                  int32_t w_in, int32_t began)
{
    int32_t m, i;
    if (bias != NULL && !began) {
        for (m = 0; m < outs; ++m) {
            const float b = bias[m];
            PO_UNROLL(4)
            for (i = 0; i < size; ++i) {
                y[m * y_plane + i] = b;
            }
        }
    }
    po_product(y, w, x, outs, size, ins, y_plane, 1, w_out, w_in, x_plane, 1, bias != NULL || began);
}

/* The same for input planes `from` to `from` + `count`, with `part` [outs, size] as in po_product_piece. */
PO_INLINE void po_pointwise_piece(float *y, float *part, const float *x, const float *w, const float *bias,
                                  int32_t outs, int32_t ins, int32_t from, int32_t count, int32_t size, int32_t w_out,
                                  int32_t w_in)
{
    int32_t m, i;
    for (m = 0; bias != NULL && from == 0 && m < outs; ++m) {
        for (i = 0; i < size; ++i) {
            y[m * size + i] = bias[m];
        }
    }
    po_product_piece(y, part, w, x, outs, size, ins, from, count, size, 1, w_out, w_in, size, 1, bias != NULL);
}

PO_INLINE void po_pointwise(float *y, const float *x, const float *w, const float *bias, int32_t images, int32_t outs,
                            int32_t ins, int32_t size, int32_t w_out, int32_t w_in)
{
    int32_t n;
    for (n = 0; n < images; ++n) {
        po_pointwise_image(y + n * outs * size, x + n * ins * size, w, bias, outs, ins, size, size, size, w_out, w_in,
                           0);
    }
}

/* Convolution of `images` images in `groups` groups; w is [groups * outs, ins, kh, kw]. */
PO_INLINE void po_convolution(float *y, const float *x, const float *w, const float *bias, int32_t images,
                              int32_t groups, int32_t outs, int32_t ins, int32_t rows, int32_t columns, int32_t height,
                              int32_t width, int32_t kh, int32_t kw, int32_t row_step, int32_t col_step,
                              int32_t row_tap, int32_t col_tap, int32_t above, int32_t left)
{
    const int32_t taps = kh * kw, size = rows * columns;
    int32_t n, g;
    for (n = 0; n < images; ++n) {
        for (g = 0; g < groups; ++g) {
            po_conv(y + (n * groups + g) * outs * size, x + (n * groups + g) * ins * height * width,
                    w + g * outs * ins * taps, bias == NULL ? NULL : bias + g * outs, outs, ins, rows, columns, size,
                    columns, 1, height * width, height, width, kh, kw, ins * taps, taps, kw, 1, -above, row_step,
                    row_tap, -left, col_step, col_tap, 0, 0);
        }
    }
}

/* Returns the distance between two taps that meet the same row, for taps `tap` apart and rows in steps of `step`. */
PO_INLINE int32_t po_taps_apart(int32_t step, int32_t tap)
{
    int32_t apart = 1;
    while (apart * tap % step != 0) {
        ++apart;
    }
    return apart;
}

/* Returns the first of `taps` that row `at` of the padded tensor meets, or `taps`. */
PO_INLINE int32_t po_met_tap(int32_t at, int32_t step, int32_t tap, int32_t taps)
{
    int32_t r = 0;
    while (r < taps && (at - r * tap) % step != 0) {
        ++r;
    }
    return r;
}

/* The gradient of one group of one image, x [ins, height, width], from that of y [outs, rows, columns]. Weights of two
 * outputs are w_out apart, planes dx_plane and dy_plane. With steps of s, every s-th row and column of x meets the same
 * taps, so that it computes s * s convolutions. */
PO_INLINE void po_image_by_input(float *dx, const float *dy, const float *w, const float *bias, int32_t outs,
                                 int32_t ins, int32_t rows, int32_t columns, int32_t height, int32_t width, int32_t kh,
                                 int32_t kw, int32_t row_step, int32_t col_step, int32_t row_tap, int32_t col_tap,
                                 int32_t above, int32_t left, int32_t dx_plane, int32_t dy_plane, int32_t w_out,
                                 int32_t began)
{
    const int32_t down = po_taps_apart(row_step, row_tap), right = po_taps_apart(col_step, col_tap);
    int32_t p, q;
    for (p = 0; p < row_step; ++p) {
        for (q = 0; q < col_step; ++q) {
            /* rows p, p + s, ... of x meet taps r, r + down, ... for which p + above - r * tap is a multiple of s */
            const int32_t r = po_met_tap(p + above, row_step, row_tap, kh), s = po_met_tap(q + left, col_step, col_tap, kw);
            po_conv(dx + p * width + q, dy, w + r * kw + s, bias, ins, outs, (height - p + row_step - 1) / row_step,
                    (width - q + col_step - 1) / col_step, dx_plane, row_step * width, col_step, dy_plane, rows,
                    columns, (kh - r + down - 1) / down,
                    (kw - s + right - 1) / right, kh * kw, w_out, down * kw, right,
                    (p + above - r * row_tap) / row_step, 1, -(down * row_tap / row_step),
                    (q + left - s * col_tap) / col_step, 1, -(right * col_tap / col_step), began, 0);
        }
    }
}

/* The same for outputs `from` to `from` + `count`, with which dy and w begin; `sums` as in po_conv_piece. */
PO_INLINE void po_image_by_input_piece(float *dx, float *sums, const float *dy, const float *w, const float *bias,
                                       int32_t outs, int32_t ins, int32_t from, int32_t count, int32_t rows,
                                       int32_t columns, int32_t height, int32_t width, int32_t kh, int32_t kw,
                                       int32_t row_step, int32_t col_step, int32_t row_tap, int32_t col_tap,
                                       int32_t above, int32_t left, int32_t w_out)
{
    const int32_t down = po_taps_apart(row_step, row_tap), right = po_taps_apart(col_step, col_tap);
    int32_t p, q;
    for (p = 0; p < row_step; ++p) {
        for (q = 0; q < col_step; ++q) {
            const int32_t r = po_met_tap(p + above, row_step, row_tap, kh), s = po_met_tap(q + left, col_step, col_tap, kw);
            po_conv_piece(dx + p * width + q, sums + p * width + q, dy, w + r * kw + s, bias, ins, outs, from, count,
                          (height - p + row_step - 1) / row_step, (width - q + col_step - 1) / col_step,
                          height * width, row_step * width, col_step, rows, columns,
                          (kh - r + down - 1) / down,
                          (kw - s + right - 1) / right, kh * kw, w_out, down * kw, right,
                          (p + above - r * row_tap) / row_step, 1, -(down * row_tap / row_step),
                    (q + left - s * col_tap) / col_step, 1, -(right * col_tap / col_step));
        }
    }
}

/* The gradient of x [images, groups * ins, height, width] from that of y [.., groups * outs, rows, columns]. */
PO_INLINE void po_convolution_by_input(float *dx, const float *dy, const float *w, const float *bias, int32_t images,
                                       int32_t groups, int32_t outs, int32_t ins, int32_t rows, int32_t columns,
                                       int32_t height, int32_t width, int32_t kh, int32_t kw, int32_t row_step,
                                       int32_t col_step, int32_t row_tap, int32_t col_tap, int32_t above, int32_t left)
{
    int32_t n, g;
    for (n = 0; n < images; ++n) {
        for (g = 0; g < groups; ++g) {
            po_image_by_input(dx + (n * groups + g) * ins * height * width,
                              dy + (n * groups + g) * outs * rows * columns, w + g * outs * ins * kh * kw,
                              bias == NULL ? NULL : bias + g * ins, outs, ins, rows, columns, height, width, kh, kw,
                              row_step, col_step, row_tap, col_tap, above, left, height * width, rows * columns,
                              ins * kh * kw, 0);
        }
    }
}

/* The gradient of w, tap by tap, four outputs and four inputs at a time, over all rows that the tap meets. A tile of 16
 * sums is stored in dw. With `update`, it updates w instead, so that there is no gradient as large as w. */
PO_INLINE void po_tile_done(float *dw, const po_update *update, const float *tile, int32_t first, int32_t outs,
                            int32_t ins, int32_t w_out, int32_t w_in)
{
    int32_t m, c;
    for (m = 0; m < outs; ++m) {
        for (c = 0; c < ins; ++c) {
            const int32_t at = first + m * w_out + c * w_in;
            if (update == NULL) {
                dw[at] = tile[m * 4 + c];
            } else {
                po_updated(update, at, tile[m * 4 + c]);
            }
        }
    }
}

/* Products of a row of dy, at most PO_PART long, with a row of x at three taps, `tap` apart from `at` on. The sum of each
 * tap is added to one of `tile`. */
PO_INLINE void po_three_taps(float *tile, const float *dy, const float *x, int32_t columns, int32_t width, int32_t at,
                             int32_t step, int32_t tap)
{
    const int32_t near0 = po_first_tap(at, step, columns, width), far0 = po_last_tap(at, step, columns, width);
    const int32_t near1 = po_first_tap(at + tap, step, columns, width);
    const int32_t far1 = po_last_tap(at + tap, step, columns, width);
    const int32_t near2 = po_first_tap(at + 2 * tap, step, columns, width);
    const int32_t far2 = po_last_tap(at + 2 * tap, step, columns, width);
    const int32_t first = po_larger(near0, po_larger(near1, near2)), last = po_smaller(far0, po_smaller(far1, far2));
    const int32_t common = po_larger(first, last);
    const float *x0 = x + at, *x1 = x + at + tap, *x2 = x + at + 2 * tap;
    float s0 = 0.0f, s1 = 0.0f, s2 = 0.0f;
    int32_t k;
    for (k = near0; k < po_smaller(first, far0); ++k) {
        s0 += dy[k] * x0[k * step];
    }
    for (k = near1; k < po_smaller(first, far1); ++k) {
        s1 += dy[k] * x1[k * step];
    }
    for (k = near2; k < po_smaller(first, far2); ++k) {
        s2 += dy[k] * x2[k * step];
    }
    PO_UNROLL(4)
    for (k = first; k < last; ++k) {
        const float v = dy[k];
        s0 += v * x0[k * step];
        s1 += v * x1[k * step];
        s2 += v * x2[k * step];
    }
    for (k = common; k < far0; ++k) {
        s0 += dy[k] * x0[k * step];
    }
    for (k = common; k < far1; ++k) {
        s1 += dy[k] * x1[k * step];
    }
    for (k = common; k < far2; ++k) {
        s2 += dy[k] * x2[k * step];
    }
    tile[0] += s0;
    tile[1] += s1;
    tile[2] += s2;
}

/* Images of dy and of x are dy_image and x_image apart, planes `size` and `plane`, weights of two outputs w_out. With
 * `sums`, laid out like w, the call computes some of all rows: it adds to `sums` unless it `begins`, until one `ends`. */
PO_INLINE void po_images_by_weight(float *dw, const po_update *update, const float *dy, const float *x, int32_t images,
                                   int32_t groups, int32_t outs, int32_t ins, int32_t rows, int32_t columns,
                                   int32_t height, int32_t width, int32_t kh, int32_t kw, int32_t row_step,
                                   int32_t col_step, int32_t row_tap, int32_t col_tap, int32_t above, int32_t left,
                                   int32_t dy_image, int32_t x_image, int32_t size, int32_t plane, int32_t w_out,
                                   float *sums, int32_t begins, int32_t ends)
{
    const int32_t taps = kh * kw;
    int32_t n, g, r, s, i, m, c, k;
    for (g = 0; g < groups; ++g) {
        for (r = 0; r < kh; ++r) {
            const int32_t top = r * row_tap - above;
            const int32_t low = po_first_tap(top, row_step, rows, height);
            const int32_t high = po_last_tap(top, row_step, rows, height);
            if (outs == 1 && ins == 1 && kw == 3 && columns <= PO_PART) { /* depthwise */
                const int32_t at = g * w_out + r * kw;
                float tile[3];
                for (s = 0; s < 3; ++s) {
                    tile[s] = begins ? 0.0f : sums[at + s];
                }
                for (n = 0; n < images; ++n) {
                    const float *up = dy + n * dy_image + g * size;
                    const float *in = x + n * x_image + g * plane + top * width;
                    for (i = low; i < high; ++i) {
                        po_three_taps(tile, up + i * columns, in + i * row_step * width, columns, width, -left,
                                      col_step, col_tap);
                    }
                }
                po_tile_done(ends ? dw : sums, ends ? update : NULL, tile, at, 1, 3, w_out, 1);
                continue;
            }
            for (s = 0; s < kw; ++s) {
                const int32_t side = s * col_tap - left;
                const int32_t near = po_first_tap(side, col_step, columns, width);
                const int32_t far = po_last_tap(side, col_step, columns, width);
                for (m = 0; m < outs; m += po_tile_edge(outs, m)) {
                    for (c = 0; c < ins; c += po_tile_edge(ins, c)) {
                        const int32_t high_tile = po_tile_edge(outs, m), wide_tile = po_tile_edge(ins, c);
                        const int32_t at = (g * outs + m) * w_out + c * taps + r * kw + s;
                        float tile[16];
                        for (i = 0; i < 16; ++i) {
                            const int32_t there = i / 4 < high_tile && i % 4 < wide_tile;
                            tile[i] = begins || !there ? 0.0f : sums[at + i / 4 * w_out + i % 4 * taps];
                        }
                        for (n = 0; n < images; ++n) {
                            const float *up = dy + n * dy_image + (g * outs + m) * size;
                            const float *in = x + n * x_image + (g * ins + c) * plane;
                            for (i = low; i < high; ++i) {
                                const float *a = up + i * columns;
                                const float *b = in + (top + i * row_step) * width + side;
                                for (k = near; k < far; k += PO_PART) {
                                    const int32_t end = po_smaller(far, k + PO_PART);
                                    if (high_tile == 4 && wide_tile == 4) {
                                        po_tile_4x4(tile, a, b, 4, 1, size, 1, col_step, plane, k, end, 0, 0);
                                    } else if (high_tile == 4) {
                                        po_tile_1x4(tile, b, a, 4, col_step, 1, size, k, end, 0, 0);
                                    } else if (wide_tile == 4) {
                                        po_tile_1x4(tile, a, b, 1, 1, col_step, plane, k, end, 0, 0);
                                    } else {
                                        po_tile_1x1(tile, a, b, 1, col_step, k, end, 0, 0);
                                    }
                                }
                            }
                        }
                        po_tile_done(ends ? dw : sums, ends ? update : NULL, tile, at, high_tile, wide_tile, w_out,
                                     taps);
                    }
                }
            }
        }
    }
}

PO_INLINE void po_convolution_by_weight(float *dw, const po_update *update, const float *dy, const float *x,
                                        int32_t images, int32_t groups, int32_t outs, int32_t ins, int32_t rows,
                                        int32_t columns, int32_t height, int32_t width, int32_t kh, int32_t kw,
                                        int32_t row_step, int32_t col_step, int32_t row_tap, int32_t col_tap,
                                        int32_t above, int32_t left)
{
    po_images_by_weight(dw, update, dy, x, images, groups, outs, ins, rows, columns, height, width, kh, kw, row_step,
                        col_step, row_tap, col_tap, above, left, groups * outs * rows * columns,
                        groups * ins * height * width, rows * columns, height * width, ins * kh * kw, NULL, 1, 1);
}

#endif
