/* Normalizations, softmax, and their gradients. Sums over planes are in parts of PO_PART. */
#ifndef PO_NORM_H
#define PO_NORM_H

#include "po_math.h"
#include "po_update.h"

/* The sum of x over one channel of [images, channels, size]. */
PO_INLINE float po_channel_sum(const float *x, int32_t images, int32_t channels, int32_t size, int32_t c)
{
    float sum = 0.0f;
    int32_t n, i, k;
    for (n = 0; n < images; ++n) {
        const float *p = x + (n * channels + c) * size;
        for (i = 0; i < size; i += PO_PART) {
            const int32_t end = po_smaller(size, i + PO_PART);
            float part = 0.0f;
            PO_UNROLL(4)
            for (k = i; k < end; ++k) {
                part += p[k];
            }
            sum += part;
        }
    }
    return sum;
}

/* The sum of (x - a) (y - b) over one channel. */
PO_INLINE float po_channel_dot(const float *x, const float *y, float a, float b, int32_t images, int32_t channels,
                               int32_t size, int32_t c)
{
    float sum = 0.0f;
    int32_t n, i, k;
    for (n = 0; n < images; ++n) {
        const float *p = x + (n * channels + c) * size;
        const float *q = y + (n * channels + c) * size;
        for (i = 0; i < size; i += PO_PART) {
            const int32_t end = po_smaller(size, i + PO_PART);
            float part = 0.0f;
            PO_UNROLL(4)
            for (k = i; k < end; ++k) {
                part += (p[k] - a) * (q[k] - b);
            }
            sum += part;
        }
    }
    return sum;
}

/* y = scale (x - mean) / sqrt(variance + epsilon) + bias for each channel; y may be x. */
PO_INLINE void po_batch_norm(float *y, const float *x, const float *scale, const float *bias, const float *mean,
                             const float *variance, int32_t images, int32_t channels, int32_t size, float epsilon)
{
    int32_t n, c, i;
    for (n = 0; n < images; ++n) {
        for (c = 0; c < channels; ++c) {
            const float slope = scale[c] / sqrtf(variance[c] + epsilon), middle = mean[c], b = bias[c];
            const float *p = x + (n * channels + c) * size;
            float *q = y + (n * channels + c) * size;
            PO_UNROLL(4)
            for (i = 0; i < size; ++i) {
                q[i] = (p[i] - middle) * slope + b;
            }
        }
    }
}

/* Normalizes by mean and variance of the batch, and updates running statistics, with `momentum` for the old ones. y may
 * be x. */
PO_INLINE void po_batch_norm_training(float *y, float *mean, float *variance, float *new_mean, float *new_variance,
                                      const float *x, const float *scale, const float *bias, const float *old_mean,
                                      const float *old_variance, int32_t images, int32_t channels, int32_t size,
                                      float epsilon, float momentum, float rest)
{
    const float count = (float)(images * size);
    int32_t c;
    for (c = 0; c < channels; ++c) {
        const float m = po_channel_sum(x, images, channels, size, c) / count;
        const float v = po_channel_dot(x, x, m, m, images, channels, size, c) / count;
        mean[c] = m;
        variance[c] = v;
        if (new_mean != NULL) {
            new_mean[c] = old_mean[c] * momentum + m * rest;
        }
        if (new_variance != NULL) {
            new_variance[c] = old_variance[c] * momentum + v * rest;
        }
    }
    po_batch_norm(y, x, scale, bias, mean, variance, images, channels, size, epsilon);
}

/* For each channel, with the normalized x': the sums of dy x' and dy, and in `centred`, which may be dy or NULL,
 * dy - (sum of dy + x' sum of dy x') / count. */
PO_INLINE void po_batch_norm_sums(float *centred, float *dscale, float *dbias, const float *dy, const float *x,
                                  const float *mean, const float *variance, int32_t images, int32_t channels,
                                  int32_t size, float epsilon)
{
    const float share = 1.0f / (float)(images * size);
    int32_t n, c, i;
    for (c = 0; c < channels; ++c) {
        const float inverse = 1.0f / sqrtf(variance[c] + epsilon), m = mean[c];
        const float slope = po_channel_dot(x, dy, m, 0.0f, images, channels, size, c) * inverse;
        const float sum = po_channel_sum(dy, images, channels, size, c);
        if (centred != NULL) {
            const float tilt = slope * share * inverse, level = sum * share;
            for (n = 0; n < images; ++n) {
                const float *p = x + (n * channels + c) * size;
                const float *d = dy + (n * channels + c) * size;
                float *q = centred + (n * channels + c) * size;
                PO_UNROLL(4)
                for (i = 0; i < size; ++i) {
                    q[i] = d[i] - (level + (p[i] - m) * tilt);
                }
            }
        }
        dscale[c] = slope;
        dbias[c] = sum;
    }
}

/* The sum of a row, and the sum of products of two rows, each minus a constant. */
PO_INLINE float po_row_sum(const float *x, int32_t size, int32_t step)
{
    float sum = 0.0f;
    int32_t i, k;
    for (i = 0; i < size; i += PO_PART) {
        const int32_t end = po_smaller(size, i + PO_PART);
        float part = 0.0f;
        for (k = i; k < end; ++k) {
            part += x[k * step];
        }
        sum += part;
    }
    return sum;
}

PO_INLINE float po_row_dot(const float *x, const float *y, float a, float b, int32_t size, int32_t x_step,
                           int32_t y_step)
{
    float sum = 0.0f;
    int32_t i, k;
    for (i = 0; i < size; i += PO_PART) {
        const int32_t end = po_smaller(size, i + PO_PART);
        float part = 0.0f;
        for (k = i; k < end; ++k) {
            part += (x[k * x_step] - a) * (y[k * y_step] - b);
        }
        sum += part;
    }
    return sum;
}

/* Normalizes rows of `size` elements; `means` and `inverses`, if not NULL, get the rows' means and inverse deviations. */
PO_INLINE void po_layer_norm(float *y, float *means, float *inverses, const float *x, const float *scale,
                             const float *bias, int32_t rows, int32_t size, float epsilon)
{
    int32_t r, i;
    for (r = 0; r < rows; ++r) {
        const float *p = x + r * size;
        float *q = y + r * size;
        const float mean = po_row_sum(p, size, 1) / (float)size;
        const float inverse = 1.0f / sqrtf(po_row_dot(p, p, mean, mean, size, 1, 1) / (float)size + epsilon);
        for (i = 0; i < size; ++i) {
            q[i] = (p[i] - mean) * inverse * scale[i] + (bias == NULL ? 0.0f : bias[i]);
        }
        if (means != NULL) {
            means[r] = mean;
        }
        if (inverses != NULL) {
            inverses[r] = inverse;
        }
    }
}

/* Normalizes rows of `each` channels of `size` elements; scale and bias have an element a channel, or a group if
 * `by_group`. y may be x. */
PO_INLINE void po_group_norm(float *y, const float *x, const float *scale, const float *bias, int32_t images,
                             int32_t groups, int32_t each, int32_t size, int32_t by_group, float epsilon)
{
    const int32_t count = each * size;
    int32_t n, g, c, i;
    for (n = 0; n < images; ++n) {
        for (g = 0; g < groups; ++g) {
            const float *p = x + (n * groups + g) * count;
            float *q = y + (n * groups + g) * count;
            const float mean = po_row_sum(p, count, 1) / (float)count;
            const float inverse = 1.0f / sqrtf(po_row_dot(p, p, mean, mean, count, 1, 1) / (float)count + epsilon);
            for (c = 0; c < each; ++c) {
                const int32_t of = by_group ? g : g * each + c;
                const float slope = inverse * scale[of], b = bias[of];
                for (i = c * size; i < (c + 1) * size; ++i) {
                    q[i] = (p[i] - mean) * slope + b;
                }
            }
        }
    }
}

/* All gradients of a layer normalization; each may be NULL, and dx may be dy. If it has `begun`, it adds to dscale and
 * dbias, which have the sums of earlier rows. */
PO_INLINE void po_layer_norm_gradient(float *dx, float *dscale, float *dbias, const float *dy, const float *x,
                                      const float *scale, const float *means, const float *inverses, int32_t rows,
                                      int32_t size, int32_t begun)
{
    int32_t r, i;
    for (i = 0; i < size && !begun; ++i) {
        if (dscale != NULL) {
            dscale[i] = 0.0f;
        }
        if (dbias != NULL) {
            dbias[i] = 0.0f;
        }
    }
    for (r = 0; r < rows; ++r) {
        const float *p = x + r * size;
        const float *d = dy + r * size;
        const float mean = means[r], inverse = inverses[r];
        if (dscale != NULL) {
            for (i = 0; i < size; ++i) {
                dscale[i] += d[i] * ((p[i] - mean) * inverse);
            }
        }
        if (dbias != NULL) {
            for (i = 0; i < size; ++i) {
                dbias[i] += d[i];
            }
        }
        if (dx != NULL) {
            float *q = dx + r * size;
            float sum = 0.0f, slope = 0.0f;
            int32_t k;
            for (i = 0; i < size; i += PO_PART) {
                const int32_t end = po_smaller(size, i + PO_PART);
                float a = 0.0f, b = 0.0f;
                for (k = i; k < end; ++k) {
                    const float g = d[k] * scale[k];
                    a += g;
                    b += g * (p[k] - mean);
                }
                sum += a;
                slope += b;
            }
            sum /= (float)size;
            slope = slope * inverse * inverse / (float)size;
            for (i = 0; i < size; ++i) {
                q[i] = inverse * (d[i] * scale[i] - sum - (p[i] - mean) * slope);
            }
        }
    }
}

/* Softmax along the middle axis of [outer, size, inner], whose elements are `y_step` and `x_step` apart; y may be x. With
 * `logarithm`, log(softmax). */
PO_INLINE void po_softmax(float *y, const float *x, int32_t outer, int32_t size, int32_t inner, int32_t y_step,
                          int32_t x_step, int32_t logarithm)
{
    int32_t o, j, i;
    for (o = 0; o < outer; ++o) {
        for (j = 0; j < inner; ++j) {
            const float *p = x + o * size * x_step + j;
            float *q = y + o * size * y_step + j;
            float most = p[0], sum = 0.0f;
            for (i = 1; i < size; ++i) {
                most = po_max(most, p[i * x_step]);
            }
            if (logarithm) {
                for (i = 0; i < size; ++i) {
                    sum += po_exp(p[i * x_step] - most);
                }
                sum = po_log(sum);
                for (i = 0; i < size; ++i) {
                    q[i * y_step] = p[i * x_step] - most - sum;
                }
            } else {
                for (i = 0; i < size; ++i) {
                    q[i * y_step] = po_exp(p[i * x_step] - most);
                }
                sum = po_row_sum(q, size, y_step);
                for (i = 0; i < size; ++i) {
                    q[i * y_step] /= sum;
                }
            }
        }
    }
}

/* dx = y (dy - sum of dy y); dx may be dy. */
PO_INLINE void po_softmax_gradient(float *dx, const float *dy, const float *y, int32_t outer, int32_t size,
                                   int32_t inner, int32_t dx_step, int32_t dy_step, int32_t y_step)
{
    int32_t o, j, i;
    for (o = 0; o < outer; ++o) {
        for (j = 0; j < inner; ++j) {
            const float *d = dy + o * size * dy_step + j;
            const float *p = y + o * size * y_step + j;
            float *q = dx + o * size * dx_step + j;
            const float sum = po_row_dot(d, p, 0.0f, 0.0f, size, dy_step, y_step);
            for (i = 0; i < size; ++i) {
                q[i * dx_step] = p[i * y_step] * (d[i * dy_step] - sum);
            }
        }
    }
}

/* dx = (softmax - 1 at the label) factor, from log-probabilities [outer, size, inner], which dx may overwrite. */
PO_INLINE void po_cross_entropy_gradient(float *dx, const float *logs, const int64_t *labels, float factor,
                                         int32_t outer, int32_t size, int32_t inner, int32_t dx_step,
                                         int32_t logs_step, int32_t labels_step)
{
    int32_t o, j, i;
    for (o = 0; o < outer; ++o) {
        for (i = 0; i < size; ++i) {
            const float *p = logs + (o * size + i) * logs_step;
            float *q = dx + (o * size + i) * dx_step;
            for (j = 0; j < inner; ++j) {
                const float hit = labels[o * labels_step + j] == i ? 1.0f : 0.0f;
                q[j] = (po_exp(p[j]) - hit) * factor;
            }
        }
    }
}

/* The mean (or sum) of -log p of the labels. If it has `begun`, `loss` has the sum so far; with `parts`, these have a sum
 * for each of `outer` instead. At the end (`ends`) the sum is negated and multiplied by `factor`. */
PO_INLINE void po_likelihood_loss(float *loss, const float *logs, const int64_t *labels, int32_t outer, int32_t size,
                                  int32_t inner, int32_t logs_step, int32_t labels_step, float *parts, int32_t begun,
                                  int32_t ends, float factor)
{
    float sum = begun && parts == NULL ? loss[0] : 0.0f;
    int32_t o, j;
    for (o = 0; o < outer; ++o) {
        float part = begun && parts != NULL ? parts[o] : 0.0f;
        for (j = 0; j < inner; ++j) {
            part += logs[(o * size + (int32_t)labels[o * labels_step + j]) * logs_step + j];
        }
        if (parts != NULL) {
            parts[o] = part;
        }
        sum += part;
    }
    loss[0] = ends ? -sum * factor : sum;
}

/* The mean (or sum) of -log p of the labels that aren't `ignored`; x [outer, size, inner] are log-probabilities, or
 * scores. */
PO_INLINE void po_labels_loss(float *loss, const float *x, const int64_t *labels, int32_t outer, int32_t size,
                              int32_t inner, int32_t logarithms, int32_t ignores, int64_t ignored, int32_t mean)
{
    float sum = 0.0f;
    int32_t count = 0, o, j, i;
    for (o = 0; o < outer; ++o) {
        float part = 0.0f;
        for (j = 0; j < inner; ++j) {
            const int64_t label = labels[o * inner + j];
            const float *p = x + o * size * inner + j;
            if (ignores && label == ignored) {
                continue;
            }
            part += p[(int32_t)label * inner];
            count += 1;
            if (!logarithms) {
                float most = p[0], total = 0.0f;
                for (i = 1; i < size; ++i) {
                    most = po_max(most, p[i * inner]);
                }
                for (i = 0; i < size; ++i) {
                    total += po_exp(p[i * inner] - most);
                }
                part -= most + po_log(total);
            }
        }
        sum += part;
    }
    loss[0] = -sum / (mean ? (float)count : 1.0f);
}

/* The sum of products of two rows, in eight partial sums. */
PO_INLINE float po_dot(const float *x, const float *y, int32_t size)
{
    float sums[8] = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f}, rest = 0.0f;
    int32_t i, k;
    for (i = 0; i + 8 <= size; i += 8) {
        for (k = 0; k < 8; ++k) {
            sums[k] += x[i + k] * y[i + k];
        }
    }
    for (; i < size; ++i) {
        rest += x[i] * y[i];
    }
    return ((sums[0] + sums[4]) + (sums[1] + sums[5])) + ((sums[2] + sums[6]) + (sums[3] + sums[7])) + rest;
}

/* Cross-entropy of x w' + b and its gradient by x, class by class: this call has classes `begin` to `begin` + `count` of w
 * and b, and completes the results after the last class. For each row, `state` keeps the largest score, the sum of
 * exponentials, the label's score and, if these are separate, the label's row of w. `whole`, if not NULL, gets the
 * logarithm of the sum of all exponentials. */
PO_INLINE void po_linear_loss(float *loss, float *gradient, float *whole, const float *x, const float *w,
                              const float *b, const int64_t *labels, float *state, int32_t rows, int32_t size,
                              int32_t begin, int32_t count, int32_t ends, int32_t ignores, int64_t ignored)
{
    float *own = state + 3 * rows, sum = 0.0f;
    int32_t kept = 0, c, r, i;
    for (c = 0; c < count; ++c) {
        const float *v = w + c * size;
        for (r = 0; r < rows; ++r) {
            const float score = po_dot(x + r * size, v, size) + (b == NULL ? 0.0f : b[c]);
            float *s = state + 3 * r, *g = gradient + r * size, power;
            const int32_t first = begin + c == 0;
            if (first || score > s[0]) {
                const float shrunk = first ? 0.0f : po_exp(s[0] - score);
                s[1] = first ? 0.0f : s[1] * shrunk;
                for (i = 0; i < size; ++i) {
                    g[i] = first ? 0.0f : g[i] * shrunk;
                }
                s[0] = score;
            }
            power = po_exp(score - s[0]);
            s[1] += power;
            for (i = 0; i < size; ++i) {
                g[i] += power * v[i];
            }
            if ((ignores && labels[r] == ignored ? 0 : labels[r]) == begin + c) {
                s[2] = score;
                memcpy(own + r * size, v, (size_t)size * sizeof(float));
            }
        }
    }
    if (!ends) {
        return;
    }
    for (r = 0; r < rows; ++r) {
        kept += !(ignores && labels[r] == ignored);
    }
    for (r = 0; r < rows; ++r) {
        const float *s = state + 3 * r;
        const float share = (ignores && labels[r] == ignored ? 0.0f : 1.0f) / (float)kept;
        float *g = gradient + r * size;
        if (whole != NULL) {
            whole[r] = s[0] + po_log(s[1]);
        }
        sum += (s[0] + po_log(s[1]) - s[2]) * share;
        for (i = 0; i < size; ++i) {
            g[i] = (g[i] / s[1] - own[r * size + i]) * share;
        }
    }
    loss[0] = sum;
}

/* The gradient by classes `begin` to `begin` + `count` of w (or of b, if `of_bias`), times `factor`; `whole` is the result
 * of po_linear_loss. An update reads the gradient class by class, so that `out` then has room for one class. */
PO_INLINE void po_linear_loss_weight(float *out, const po_update *update, const float *x, const float *w,
                                     const float *b, const int64_t *labels, const float *whole, float factor,
                                     int32_t rows, int32_t size, int32_t of_bias, int32_t begin, int32_t count,
                                     int32_t ignores, int64_t ignored)
{
    const int32_t width = of_bias ? 1 : size;
    int32_t kept = 0, c, r, i;
    for (r = 0; r < rows; ++r) {
        kept += !(ignores && labels[r] == ignored);
    }
    factor /= (float)kept;
    for (c = 0; c < count; ++c) {
        float *g = update == NULL ? out + c * width : out;
        for (i = 0; i < width; ++i) {
            g[i] = 0.0f;
        }
        for (r = 0; r < rows; ++r) {
            float score, part;
            if (ignores && labels[r] == ignored) {
                continue;
            }
            score = po_dot(x + r * size, w + c * size, size) + (b == NULL ? 0.0f : b[c]);
            part = (po_exp(score - whole[r]) - (labels[r] == begin + c ? 1.0f : 0.0f)) * factor;
            for (i = 0; i < width; ++i) {
                g[i] += of_bias ? part : part * x[r * size + i];
            }
        }
        for (i = 0; update != NULL && i < width; ++i) {
            po_updated(update, c * width + i, g[i]);
        }
    }
}

#endif
