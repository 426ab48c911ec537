/* Resizing of planes along two axes: by the nearest element, the weighted mean of two or four neighbours, or a cubic of
 * four or sixteen. */
#ifndef PO_RESIZE_H
#define PO_RESIZE_H

#include "po_math.h"

enum { PO_HALF_PIXEL, PO_ASYMMETRIC, PO_ALIGN_CORNERS, PO_TORCH_HALF_PIXEL };
enum { PO_PREFER_FLOOR, PO_PREFER_CEIL, PO_FLOOR, PO_CEIL };

/* Returns the position of element `i` of `out` output elements among `size` input elements; `scale` is about out / size. */
PO_INLINE float po_resized_at(int32_t i, float scale, int32_t out, int32_t size, int32_t places)
{
    if (scale == 1.0f) {
        return (float)i;
    }
    if (places == PO_ASYMMETRIC) {
        return (float)i / scale;
    }
    if (places == PO_ALIGN_CORNERS) {
        return out == 1 ? 0.0f : (float)i * (float)(size - 1) / (float)(out - 1);
    }
    if (places == PO_TORCH_HALF_PIXEL && out == 1) {
        return 0.0f;
    }
    return ((float)i + 0.5f) / scale - 0.5f;
}

/* Returns the element nearest to a position. */
PO_INLINE int32_t po_nearest(float at, int32_t size, int32_t ties)
{
    const float below = floorf(at), above = ceilf(at), rest = at - below;
    const int down = ties == PO_FLOOR || (ties == PO_PREFER_FLOOR && rest <= 0.5f) || (ties == PO_PREFER_CEIL && rest < 0.5f);
    const int32_t found = (int32_t)(down ? below : above);
    return found < 0 ? 0 : found < size ? found : size - 1;
}

/* Rows `begin` to `begin` + `count` of y's planes of `rows` x `columns`, from x's planes of `height` x `width`. x begins
 * with row `first`. Planes are `y_apart` and `x_apart` elements apart. */
PO_INLINE void po_resize_nearest(float *y, const float *x, int32_t planes, int32_t begin, int32_t count, int32_t rows,
                                 int32_t columns, int32_t height, int32_t width, int32_t first, int32_t y_apart,
                                 int32_t x_apart, float down, float right, int32_t places, int32_t ties)
{
    int32_t p, r, c;
    for (p = 0; p < planes; ++p) {
        for (r = 0; r < count; ++r) {
            const int32_t at = po_nearest(po_resized_at(begin + r, down, rows, height, places), height, ties) - first;
            const float *from = x + p * x_apart + at * width;
            float *to = y + p * y_apart + r * columns;
            for (c = 0; c < columns; ++c) {
                to[c] = from[po_nearest(po_resized_at(c, right, columns, width, places), width, ties)];
            }
        }
    }
}

/* Returns the element before a position that is clamped to the line, and sets the distance from it. */
PO_INLINE int32_t po_before(float at, int32_t size, float *share)
{
    const float most = (float)(size - 1), within = at < 0.0f ? 0.0f : at < most ? at : most;
    const int32_t found = (int32_t)within;
    *share = found < size - 1 ? within - (float)found : 0.0f;
    return found;
}

PO_INLINE void po_resize_linear(float *y, const float *x, int32_t planes, int32_t begin, int32_t count, int32_t rows,
                                int32_t columns, int32_t height, int32_t width, int32_t first, int32_t y_apart,
                                int32_t x_apart, float down, float right, int32_t places)
{
    int32_t p, r, c;
    for (p = 0; p < planes; ++p) {
        for (r = 0; r < count; ++r) {
            float low, left;
            const int32_t at = po_before(po_resized_at(begin + r, down, rows, height, places), height, &low);
            const float *from = x + p * x_apart + (at - first) * width;
            const float *next = at < height - 1 ? from + width : from;
            float *to = y + p * y_apart + r * columns;
            for (c = 0; c < columns; ++c) {
                const int32_t k = po_before(po_resized_at(c, right, columns, width, places), width, &left);
                const int32_t behind = k < width - 1 ? k + 1 : k;
                const float above = from[k] * (1.0f - left) + from[behind] * left;
                const float below = next[k] * (1.0f - left) + next[behind] * left;
                to[c] = above * (1.0f - low) + below * low;
            }
        }
    }
}

/* Sets the first of the four elements around a position, and the weight of each in a cubic with coefficient a. With
 * `within`, only elements within `size` have weights. */
PO_INLINE int32_t po_cubic(float at, int32_t size, float a, int32_t within, float *shares)
{
    const float below = floorf(at), s = at - below, t = 1.0f - s;
    const int32_t first = (int32_t)below - 1;
    float sum = 0.0f;
    int32_t k;
    shares[0] = ((a * (s + 1.0f) - 5.0f * a) * (s + 1.0f) + 8.0f * a) * (s + 1.0f) - 4.0f * a;
    shares[1] = ((a + 2.0f) * s - (a + 3.0f)) * s * s + 1.0f;
    shares[2] = ((a + 2.0f) * t - (a + 3.0f)) * t * t + 1.0f;
    shares[3] = ((a * (t + 1.0f) - 5.0f * a) * (t + 1.0f) + 8.0f * a) * (t + 1.0f) - 4.0f * a;
    if (within) {
        for (k = 0; k < 4; ++k) {
            shares[k] = first + k < 0 || first + k >= size ? 0.0f : shares[k];
            sum += shares[k];
        }
        for (k = 0; k < 4; ++k) {
            shares[k] /= sum;
        }
    }
    return first;
}

PO_INLINE void po_resize_cubic(float *y, const float *x, int32_t planes, int32_t begin, int32_t count, int32_t rows,
                               int32_t columns, int32_t height, int32_t width, int32_t first, int32_t y_apart,
                               int32_t x_apart, float down, float right, int32_t places, float a, int32_t within)
{
    int32_t p, r, c, i, j;
    for (p = 0; p < planes; ++p) {
        for (r = 0; r < count; ++r) {
            float low[4], left[4];
            const int32_t at = po_cubic(po_resized_at(begin + r, down, rows, height, places), height, a, within, low);
            float *to = y + p * y_apart + r * columns;
            for (c = 0; c < columns; ++c) {
                const int32_t k = po_cubic(po_resized_at(c, right, columns, width, places), width, a, within, left);
                float sum = 0.0f;
                for (i = 0; i < 4; ++i) {
                    const float *from = x + p * x_apart + (po_smaller(po_larger(at + i, 0), height - 1) - first) * width;
                    float line = 0.0f;
                    for (j = 0; j < 4; ++j) {
                        line += left[j] * from[po_smaller(po_larger(k + j, 0), width - 1)];
                    }
                    sum += low[i] * line;
                }
                to[c] = sum;
            }
        }
    }
}

#endif
