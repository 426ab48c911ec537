/* Rows of embedding tables that a batch uses, and their transfers between RAM and storage. A list of rows begins with its
   length. */
#ifndef PO_ROWS_H
#define PO_ROWS_H

#include <stdint.h>

#include "po.h"

#if defined(__GNUC__)
#define PO_ROWS static __attribute__((unused))
#else
#define PO_ROWS static
#endif

/* Lists the distinct rows of `ids` in order of appearance, and replaces each number by its position in the list. Negative
   numbers count from the end of the table of `length` rows. */
#define PO_ROWS_USED(NAME, INDEX)                                                    \
    PO_ROWS void NAME(uint32_t *rows, INDEX *ids, uint32_t count, uint32_t length)   \
    {                                                                                \
        rows[0] = 0u;                                                                \
        for (uint32_t i = 0; i < count; i++) {                                       \
            const uint32_t row = (uint32_t)(ids[i] < 0 ? ids[i] + (INDEX)length : ids[i]); \
            uint32_t place = 0;                                                      \
            while (place < rows[0] && rows[1u + place] != row) {                     \
                place++;                                                             \
            }                                                                        \
            if (place == rows[0]) {                                                  \
                rows[1u + place] = row;                                              \
                rows[0]++;                                                           \
            }                                                                        \
            ids[i] = (INDEX)place;                                                   \
        }                                                                            \
    }
PO_ROWS_USED(po_rows_used_int64, int64_t)
PO_ROWS_USED(po_rows_used_int32, int32_t)

/* Read and write rows of `bytes` bytes; each row has `blocks` blocks on the storage. */
PO_ROWS int po_rows_in(const uint32_t *rows, uint32_t block, uint32_t blocks, void *address, uint32_t bytes)
{
    unsigned char *to = address;
    int code = 0;
    for (uint32_t k = 0; code == 0 && k < rows[0]; k++) {
        code = po_read(block + rows[1u + k] * blocks, to + k * bytes, bytes);
    }
    return code;
}

PO_ROWS int po_rows_out(const uint32_t *rows, uint32_t block, uint32_t blocks, const void *address, uint32_t bytes)
{
    const unsigned char *from = address;
    int code = 0;
    for (uint32_t k = 0; code == 0 && k < rows[0]; k++) {
        code = po_write(block + rows[1u + k] * blocks, from + k * bytes, bytes);
    }
    return code;
}

#endif
