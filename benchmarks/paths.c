/* The emitted example, which goes on from what was saved and saves after each step. Where the plan's step ends with
   gradients, each step is followed by plain descent. */
#include "po.h"

static int begun(void)
{
    int code = po_load();
    if (code == PO_DONE) {
        code = po_restore();
    }
    return code == PO_DAMAGED ? PO_DONE : code; /* nothing has been saved */
}

/* Behind the loss, results begin with the gradients of the parameters, in their order. */
static int went(void)
{
    int code = po_step();
    for (uint32_t k = 0; code == PO_DONE && PO_HYPERPARAMETERS == 0u && k < PO_PARAMETERS; k++) {
        float *p = (float *)po_parameters[k].address;
        const float *g = (const float *)po_results[k + 1u].address;
        for (uint32_t i = 0; i < po_parameters[k].bytes / (uint32_t)sizeof *p; i++) {
            const float change = RATE * g[i];
            p[i] -= change;
        }
    }
    return code == PO_DONE ? po_save() : code;
}

#define po_load begun
#define po_step went
#include "example.c"
