/* Tensors that go between storage and RAM chunk by chunk. Include it after po.h, or what declares po_read, po_write and
 * PO_BLOCK_BYTES.
 *
 * A window is a buffer of consecutive bytes of a tensor that begins with a block of it, and moves on: what is still
 * needed moves to the front, and whole blocks are read behind it. So each block is read once a pass, and written once. */
#ifndef PO_STREAM_H
#define PO_STREAM_H

#include <stdint.h>
#include <string.h>

typedef struct {
    unsigned char *at; /* the buffer */
    uint32_t block;    /* where the tensor begins on the storage */
    uint32_t bytes;    /* of the tensor */
    uint32_t start;    /* the buffer's first byte in the tensor */
    uint32_t end;      /* the one after the buffer's last */
} po_window;

/* Moves on so that bytes `from` to `to` are in the window, or have room there where it is not read. */
static inline int po_window_to(po_window *w, uint32_t from, uint32_t to, int reads)
{
    const uint32_t first = from / PO_BLOCK_BYTES * PO_BLOCK_BYTES;
    int code = 0;
    if (first < w->start) { /* another pass */
        w->end = first;
    } else if (first > w->start && first < w->end) {
        (void)memmove(w->at, w->at + (first - w->start), w->end - first);
    }
    w->start = first;
    w->end = w->end < first ? first : w->end;
    if (!reads) {
        w->end = to;
    } else if (w->end < to) {
        const uint32_t whole = (to + PO_BLOCK_BYTES - 1u) / PO_BLOCK_BYTES * PO_BLOCK_BYTES;
        const uint32_t limit = whole < w->bytes ? whole : w->bytes;
        code = po_read(w->block + w->end / PO_BLOCK_BYTES, w->at + (w->end - w->start), limit - w->end);
        w->end = limit;
    }
    return code;
}

/* Byte `from` of the tensor, which is in the window. */
static inline void *po_window_at(const po_window *w, uint32_t from) { return w->at + (from - w->start); }

/* Writes the window's whole blocks up to byte `to`, and at the end of the tensor what is left. */
static inline int po_window_out(const po_window *w, uint32_t to)
{
    const uint32_t limit = to == w->bytes ? to : to / PO_BLOCK_BYTES * PO_BLOCK_BYTES;
    return limit > w->start ? po_write(w->block + w->start / PO_BLOCK_BYTES, w->at, limit - w->start) : 0;
}

/* Pieces of whole blocks, as far apart as `apart` blocks, side by side in RAM. */
static inline int po_pieces_in(uint32_t block, uint32_t apart, unsigned char *at, uint32_t bytes, uint32_t pieces)
{
    uint32_t k;
    int code = 0;
    for (k = 0; code == 0 && k < pieces; ++k) {
        code = po_read(block + k * apart, at + k * bytes, bytes);
    }
    return code;
}

static inline int po_pieces_out(uint32_t block, uint32_t apart, const unsigned char *at, uint32_t bytes,
                                uint32_t pieces)
{
    uint32_t k;
    int code = 0;
    for (k = 0; code == 0 && k < pieces; ++k) {
        code = po_write(block + k * apart, at + k * bytes, bytes);
    }
    return code;
}

#endif
