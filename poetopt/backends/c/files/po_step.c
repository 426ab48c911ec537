/* Written by poetopt: the operators of ${model}, and the instructions of its plan. */

#include <stdint.h>
#include <string.h>

#include "po.h"
#ifdef PO_CONFIG
#include PO_CONFIG
#endif
${includes}
#if defined(__FAST_MATH__)
#error "-ffast-math changes the results; compile without it"
#endif
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the constants are little-endian, and this machine is not"
#endif

/* A function for each operator. It is never inlined or cloned, so that each call gives the same bits. */
#if defined(__clang__)
#define PO_ALONE static __attribute__((noinline))
#elif defined(__GNUC__)
#define PO_ALONE static __attribute__((noipa))
#else
#define PO_ALONE static
#endif
#define PO_OPERATOR PO_ALONE void
/* An operator that reads or writes storage while it runs; it returns PO_STORAGE if that fails. */
#define PO_STREAMED PO_ALONE int

#define PO_AT(base, offset) ((void *)((unsigned char *)(base) + (offset)))
#define PO_ARENA(offset) PO_AT(po_arena, offset)
#define PO_RESIDENT(offset) PO_AT(po_resident, offset)
/* Constants, which kernels read in place. */
#define PO_FLASH(offset) ((const void *)(po_flash + (offset)))

/* PO_TRY checks a transfer, PO_PASS a function that returns one of the codes of po.h. */
#define PO_TRY(call)               \
    do {                           \
        if ((call) != 0) {         \
            return PO_STORAGE;     \
        }                          \
    } while (0)
#define PO_PASS(call)              \
    do {                           \
        const int po_code = call;  \
        if (po_code != PO_DONE) {  \
            return po_code;        \
        }                          \
    } while (0)

/* The call of PO_HOOK between two instructions. */
#ifdef PO_HOOK
#define PO_HOOKED(number) (PO_HOOK(number) != 0)
#else
#define PO_HOOKED(number) 0
#endif
#define PO_NEXT(number)           \
    do {                          \
        if (PO_HOOKED(number)) {  \
            return PO_ABORTED;    \
        }                         \
    } while (0)

/* Macros of a step that can pause between instructions. */
#ifdef PO_BUDGET
#define PO_BEGIN                \
    const uint32_t from = *at;  \
    const uint32_t until = budget < UINT32_MAX - from ? from + budget : UINT32_MAX
#define PO_DUE(number)                  \
    if ((number) < from) {              \
    } else if ((number) >= until) {     \
        *at = (number);                 \
        return PO_MORE;                 \
    } else if (PO_HOOKED(number)) {     \
        return PO_ABORTED;              \
    } else
#define PO_END *at = 0u
#else
#define PO_BEGIN enum { from = 0 }
#define PO_DUE(number) PO_NEXT(number);
#define PO_END ((void)from)
#endif

${state}${rows}${operators}
${schedule}${predicts}
