/* Matrix products, four rows and four columns at a time in registers.
 *
 * Element (m, k) of a is at a[m * a_row + k * a_col], (k, n) of b at b[k * b_row + n * b_col], (m, n) of y at
 * y[m * y_row + n * y_col], so that transposed operands need no other functions. Sums over k are in parts of PO_PART. */
#ifndef PO_GEMM_H
#define PO_GEMM_H

#include "po_update.h"

/* The edge of the tile at `at` of `size`: 4, or 1 at the end. It is constant if 4 divides the size. */
PO_INLINE int32_t po_tile_edge(int32_t size, int32_t at) { return size % 4 == 0 || size - at >= 4 ? 4 : 1; }

/* y = first ? sum : y + sum */
PO_INLINE void po_join(float *y, float sum, int32_t first) { *y = first ? sum : *y + sum; }

/* Returns the initial value of a sum: that in y if it goes on, otherwise 0. */
PO_INLINE float po_from(const float *y, int32_t goes_on) { return goes_on ? *y : 0.0f; }

/* A tile of four rows and four columns in registers, s00 to s33, row by row: initial values, the addition of an outer
 * product, and `put` for each element. The elements of a row are `col` apart, from y on. */
#define PO_TILE_ROW(r, y, col, goes_on)                                                            \
    float s##r##0 = po_from((y), (goes_on)), s##r##1 = po_from((y) + (col), (goes_on));            \
    float s##r##2 = po_from((y) + 2 * (col), (goes_on)), s##r##3 = po_from((y) + 3 * (col), (goes_on))

#define PO_TILE_ADD(r, a, c0, c1, c2, c3) \
    do {                                  \
        const float po_a = (a);           \
        s##r##0 += po_a * (c0);           \
        s##r##1 += po_a * (c1);           \
        s##r##2 += po_a * (c2);           \
        s##r##3 += po_a * (c3);           \
    } while (0)

/* A term of all 16 sums: four elements of each operand. */
#define PO_TILE_TERM(p, q, a_row, b_col)                                                                  \
    do {                                                                                                  \
        const float po_b0 = (q)[0], po_b1 = (q)[b_col], po_b2 = (q)[2 * (b_col)], po_b3 = (q)[3 * (b_col)]; \
        PO_TILE_ADD(0, (p)[0], po_b0, po_b1, po_b2, po_b3);                                               \
        PO_APART;                                                                                         \
        PO_TILE_ADD(1, (p)[a_row], po_b0, po_b1, po_b2, po_b3);                                           \
        PO_APART;                                                                                         \
        PO_TILE_ADD(2, (p)[2 * (a_row)], po_b0, po_b1, po_b2, po_b3);                                     \
        PO_APART;                                                                                         \
        PO_TILE_ADD(3, (p)[3 * (a_row)], po_b0, po_b1, po_b2, po_b3);                                     \
        PO_APART;                                                                                         \
    } while (0)

#define PO_TILE_PUT(r, put, y, col, ...)            \
    do {                                            \
        put((y), s##r##0, __VA_ARGS__);             \
        put((y) + (col), s##r##1, __VA_ARGS__);     \
        put((y) + 2 * (col), s##r##2, __VA_ARGS__); \
        put((y) + 3 * (col), s##r##3, __VA_ARGS__); \
    } while (0)

/* Four rows and four columns, over k from `first` to `end`. */
PO_INLINE void po_tile_4x4(float *y, const float *a, const float *b, int32_t y_row, int32_t y_col, int32_t a_row,
                           int32_t a_col, int32_t b_row, int32_t b_col, int32_t first, int32_t end, int32_t begins,
                           int32_t goes_on)
{
    PO_TILE_ROW(0, y, y_col, goes_on);
    PO_TILE_ROW(1, y + y_row, y_col, goes_on);
    PO_TILE_ROW(2, y + 2 * y_row, y_col, goes_on);
    PO_TILE_ROW(3, y + 3 * y_row, y_col, goes_on);
    const float *p = a + first * a_col;
    const float *q = b + first * b_row;
    int32_t k = first, u;
    for (; k + 4 <= end; k += 4) {
        PO_UNROLL(4)
        for (u = 0; u < 4; ++u) {
            PO_TILE_TERM(p, q, a_row, b_col);
            p += a_col;
            q += b_row;
        }
    }
    for (; k < end; ++k) {
        PO_TILE_TERM(p, q, a_row, b_col);
        p += a_col;
        q += b_row;
    }
    PO_TILE_PUT(0, po_join, y, y_col, begins);
    PO_TILE_PUT(1, po_join, y + y_row, y_col, begins);
    PO_TILE_PUT(2, po_join, y + 2 * y_row, y_col, begins);
    PO_TILE_PUT(3, po_join, y + 3 * y_row, y_col, begins);
}

/* One row and four columns. */
PO_INLINE void po_tile_1x4(float *y, const float *a, const float *b, int32_t y_col, int32_t a_col, int32_t b_row,
                           int32_t b_col, int32_t first, int32_t end, int32_t begins,
                           int32_t goes_on)
{
    float s0 = po_from(y, goes_on), s1 = po_from(y + y_col, goes_on);
    float s2 = po_from(y + 2 * y_col, goes_on), s3 = po_from(y + 3 * y_col, goes_on);
    int32_t k;
    PO_UNROLL(2)
    for (k = first; k < end; ++k) {
        const float v = a[k * a_col];
        const float *q = b + k * b_row;
        s0 += v * q[0];
        s1 += v * q[b_col];
        s2 += v * q[2 * b_col];
        s3 += v * q[3 * b_col];
    }
    po_join(y, s0, begins);
    po_join(y + y_col, s1, begins);
    po_join(y + 2 * y_col, s2, begins);
    po_join(y + 3 * y_col, s3, begins);
}

/* One element. */
PO_INLINE void po_tile_1x1(float *y, const float *a, const float *b, int32_t a_col, int32_t b_row, int32_t first,
                           int32_t end, int32_t begins, int32_t goes_on)
{
    float sum = po_from(y, goes_on);
    int32_t k;
    for (k = first; k < end; ++k) {
        sum += a[k * a_col] * b[k * b_row];
    }
    po_join(y, sum, begins);
}

/* Terms k of `first` to `end` of y = a b. They are added to y, unless y `begins` with them. If y `goes_on`, they are
 * added one by one. */
PO_INLINE void po_product_terms(float *y, const float *a, const float *b, int32_t rows, int32_t columns, int32_t first,
                                int32_t end, int32_t y_row, int32_t y_col, int32_t a_row, int32_t a_col, int32_t b_row,
                                int32_t b_col, int32_t begins, int32_t goes_on)
{
    int32_t m, n;
    for (m = 0; m + 4 <= rows; m += 4) {
        float *out = y + m * y_row;
        const float *left = a + m * a_row;
        for (n = 0; n + 4 <= columns; n += 4) {
            po_tile_4x4(out + n * y_col, left, b + n * b_col, y_row, y_col, a_row, a_col, b_row, b_col, first, end,
                        begins, goes_on);
        }
        for (; columns % 4 != 0 && n < columns; ++n) { /* four elements of a column are a row of the transpose */
            po_tile_1x4(out + n * y_col, b + n * b_col, left, y_row, b_row, a_col, a_row, first, end, begins, goes_on);
        }
    }
    for (; rows % 4 != 0 && m < rows; ++m) {
        float *out = y + m * y_row;
        const float *left = a + m * a_row;
        for (n = 0; n + 4 <= columns; n += 4) {
            po_tile_1x4(out + n * y_col, left, b + n * b_col, y_col, a_col, b_row, b_col, first, end, begins, goes_on);
        }
        for (; columns % 4 != 0 && n < columns; ++n) {
            po_tile_1x1(out + n * y_col, left, b + n * b_col, a_col, b_row, first, end, begins, goes_on);
        }
    }
}

/* y = a b, or y + a b if `adds`. */
PO_INLINE void po_product(float *y, const float *a, const float *b, int32_t rows, int32_t columns, int32_t depth,
                          int32_t y_row, int32_t y_col, int32_t a_row, int32_t a_col, int32_t b_row, int32_t b_col,
                          int32_t adds)
{
    int32_t k;
    for (k = 0; k < depth; k += PO_PART) {
        po_product_terms(y, a, b, rows, columns, k, po_smaller(depth, k + PO_PART), y_row, y_col, a_row, a_col, b_row,
                         b_col, k == 0 && adds == 0, 0);
    }
}

/* Terms `from` to `from` + `count` of the `depth` terms of the same product; a and b begin with these. Between calls,
 * `part` [rows, columns] has the sums of the current part of PO_PART terms. */
PO_INLINE void po_product_piece(float *y, float *part, const float *a, const float *b, int32_t rows, int32_t columns,
                                int32_t depth, int32_t from, int32_t count, int32_t y_row, int32_t y_col,
                                int32_t a_row, int32_t a_col, int32_t b_row, int32_t b_col, int32_t adds)
{
    int32_t k = 0, m, n;
    while (k < count) {
        const int32_t within = (from + k) % PO_PART, end = po_smaller(count, k + PO_PART - within);
        const int32_t first = from + k < PO_PART && adds == 0;
        po_product_terms(part, a, b, rows, columns, k, end, columns, 1, a_row, a_col, b_row, b_col, 1, within > 0);
        if ((from + end) % PO_PART == 0 || from + end == depth) {
            for (m = 0; m < rows; ++m) {
                for (n = 0; n < columns; ++n) {
                    po_join(y + m * y_row + n * y_col, part[m * columns + n], first);
                }
            }
        }
        k = end;
    }
}

/* An update by alpha a b, tile by tile, without a buffer for the product; rows of the parameter are u_row apart. */
PO_INLINE void po_product_update(const po_update *update, const float *a, const float *b, int32_t rows,
                                 int32_t columns, int32_t depth, int32_t u_row, int32_t a_row, int32_t a_col,
                                 int32_t b_row, int32_t b_col, float alpha)
{
    int32_t m, n, k, i, j;
    for (m = 0; m < rows; m += po_tile_edge(rows, m)) {
        for (n = 0; n < columns; n += po_tile_edge(columns, n)) {
            const int32_t high = po_tile_edge(rows, m), wide = po_tile_edge(columns, n);
            const float *left = a + m * a_row;
            const float *right = b + n * b_col;
            float tile[16];
            for (k = 0; k < depth; k += PO_PART) {
                const int32_t end = po_smaller(depth, k + PO_PART), begins = k == 0;
                if (high == 4 && wide == 4) {
                    po_tile_4x4(tile, left, right, 4, 1, a_row, a_col, b_row, b_col, k, end, begins, 0);
                } else if (high == 4) {
                    po_tile_1x4(tile, right, left, 4, b_row, a_col, a_row, k, end, begins, 0);
                } else if (wide == 4) {
                    po_tile_1x4(tile, left, right, 1, a_col, b_row, b_col, k, end, begins, 0);
                } else {
                    po_tile_1x1(tile, left, right, a_col, b_row, k, end, begins, 0);
                }
            }
            for (i = 0; i < high; ++i) {
                for (j = 0; j < wide; ++j) {
                    po_updated(update, (m + i) * u_row + n + j, alpha * tile[i * 4 + j]);
                }
            }
        }
    }
}

/* y = alpha y + beta c, with strides. */
PO_INLINE void po_scaled(float *y, const float *c, int32_t rows, int32_t columns, int32_t y_row, int32_t c_row,
                         int32_t c_col, float alpha, float beta)
{
    int32_t m, n;
    for (m = 0; m < rows; ++m) {
        for (n = 0; n < columns; ++n) {
            y[m * y_row + n] = alpha * y[m * y_row + n] + (c == NULL ? 0.0f : beta * c[m * c_row + n * c_col]);
        }
    }
}

#endif
