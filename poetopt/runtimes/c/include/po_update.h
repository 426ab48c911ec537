/* What optimizers make of a gradient g: new parameters and states, over the old ones, element by element. */
#ifndef PO_UPDATE_H
#define PO_UPDATE_H

#include "po_math.h"

PO_INLINE void po_sgd(float *y, const float *p, const float *g, int32_t size, float lr, float keep)
{
    int32_t i;
    for (i = 0; i < size; ++i) {
        y[i] = p[i] * keep - g[i] * lr;
    }
}

PO_INLINE void po_momentum(float *y, float *w, const float *p, const float *g, const float *v, int32_t size, float lr,
                           float momentum, float decay)
{
    int32_t i;
    for (i = 0; i < size; ++i) {
        const float moved = v[i] * momentum + g[i] + p[i] * decay;
        y[i] = p[i] - moved * lr;
        w[i] = moved;
    }
}

/* Adam, of g + p decay, or (decay 0) AdamW, which keeps `keep` of p. */
PO_INLINE void po_adam(float *y, float *m_new, float *v_new, const float *p, const float *g, const float *m,
                       const float *v, int32_t size, float beta1, float beta2, float new1, float new2, float scale,
                       float eps, float step_size, float decay, float keep)
{
    int32_t i;
    for (i = 0; i < size; ++i) {
        const float slope = g[i] + p[i] * decay;
        const float first = m[i] * beta1 + slope * new1, second = v[i] * beta2 + slope * slope * new2;
        y[i] = p[i] * keep - first / (sqrtf(second) * scale + eps) * step_size;
        m_new[i] = first;
        v_new[i] = second;
    }
}

#endif
