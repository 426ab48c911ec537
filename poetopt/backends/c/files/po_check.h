/* Range checks of labels, indices and targets. */
#ifndef PO_CHECK_H
#define PO_CHECK_H

#include <stdint.h>
#include <string.h>

/* Returns 1 if one of `count` integers is neither in least..most nor `ignored`. */
#define PO_BEYOND(type)                                                                                       \
    static inline int po_beyond_##type(const void *data, uint32_t count, int64_t least, int64_t most,         \
                                       int64_t ignored)                                                       \
    {                                                                                                         \
        for (uint32_t k = 0; k < count; k++) {                                                                \
            type value;                                                                                       \
            (void)memcpy(&value, (const unsigned char *)data + k * (uint32_t)sizeof value, sizeof value);      \
            if (((int64_t)value < least || (int64_t)value > most) && (int64_t)value != ignored) {             \
                return 1;                                                                                     \
            }                                                                                                 \
        }                                                                                                     \
        return 0;                                                                                             \
    }

/* Returns 1 if one of `count` floats isn't in 0..1. */
#define PO_UNTRUE(type)                                                                                       \
    static inline int po_untrue_##type(const void *data, uint32_t count)                                      \
    {                                                                                                         \
        for (uint32_t k = 0; k < count; k++) {                                                                \
            type value;                                                                                       \
            (void)memcpy(&value, (const unsigned char *)data + k * (uint32_t)sizeof value, sizeof value);      \
            if (!(value >= 0 && value <= 1)) {                                                                \
                return 1;                                                                                     \
            }                                                                                                 \
        }                                                                                                     \
        return 0;                                                                                             \
    }

#endif
