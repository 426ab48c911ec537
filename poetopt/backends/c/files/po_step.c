/* Written by poetopt: the operators of ${model}, and the instructions of its plan. */

#include <stdint.h>
#include <string.h>

#include "po.h"
${includes}
/* One function an operator. It is never inlined or cloned, so that it gives the same bits at each call. */
#if defined(__clang__)
#define PO_ALONE static __attribute__((noinline))
#elif defined(__GNUC__)
#define PO_ALONE static __attribute__((noipa))
#else
#define PO_ALONE static
#endif
#define PO_OPERATOR PO_ALONE void
/* One that reads from storage or writes there while it runs, and returns what po_read or po_write did. */
#define PO_STREAMED PO_ALONE int

#define PO_AT(base, offset) ((void *)((unsigned char *)(base) + (offset)))
#define PO_ARENA(offset) PO_AT(po_arena, offset)
#define PO_RESIDENT(offset) PO_AT(po_resident, offset)
/* Constants, which are read in place: kernels write to none of them. */
#define PO_FLASH(offset) ((const void *)(po_flash + (offset)))

#define PO_TRY(call)               \
    do {                           \
        const int po_code = call;  \
        if (po_code != 0) {        \
            return po_code;        \
        }                          \
    } while (0)

${state}${rows}${operators}
${schedule}
