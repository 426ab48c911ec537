/* Updates of optimizers, element by element: new parameters and states from old ones and a gradient. */
#ifndef PO_UPDATE_H
#define PO_UPDATE_H

#include "po_math.h"

#define PO_SGD 0
#define PO_MOMENTUM 1
#define PO_ADAM 2

/* Old and new parameter and states, at the same addresses if the step updates in place, and scalars:
 *
 *     PO_SGD       lr, keep
 *     PO_MOMENTUM  lr, momentum, decay
 *     PO_ADAM      beta1, beta2, new1, new2, scale, eps, step_size, decay, keep
 */
typedef struct {
    int32_t rule;
    const float *p, *m, *v;
    float *p_new, *m_new, *v_new;
    float by[9];
} po_update;

/* Updates element `at` by its gradient g. */
PO_INLINE void po_updated(const po_update *u, int32_t at, float g)
{
    const float p = u->p[at];
    if (u->rule == PO_SGD) {
        u->p_new[at] = p * u->by[1] - g * u->by[0];
    } else if (u->rule == PO_MOMENTUM) {
        const float moved = u->m[at] * u->by[1] + g + p * u->by[2];
        u->p_new[at] = p - moved * u->by[0];
        u->m_new[at] = moved;
    } else {
        const float slope = g + p * u->by[7];
        const float first = u->m[at] * u->by[0] + slope * u->by[2];
        const float second = u->v[at] * u->by[1] + slope * slope * u->by[3];
        u->p_new[at] = p * u->by[8] - first / (sqrtf(second) * u->by[4] + u->by[5]) * u->by[6];
        u->m_new[at] = first;
        u->v_new[at] = second;
    }
}

/* Updates all elements by the gradient `alpha` g. */
PO_INLINE void po_update_scaled(const po_update *u, const float *g, int32_t size, float alpha)
{
    int32_t i;
    for (i = 0; i < size; ++i) {
        po_updated(u, i, alpha * g[i]);
    }
}

PO_INLINE void po_update_all(const po_update *u, const float *g, int32_t size)
{
    int32_t i;
    for (i = 0; i < size; ++i) {
        po_updated(u, i, g[i]);
    }
}

#endif
