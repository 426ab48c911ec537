/* Transfers of tensors between storage and RAM chunk by chunk. Include it after po.h, or another header that declares
 * po_read, po_write and PO_BLOCK_BYTES.
 *
 * A window is a buffer of consecutive bytes of a tensor, which begins with one of its blocks. When it advances, bytes that
 * are still needed move to the front, and whole blocks are read after them. Each block is therefore read and written once
 * a pass. If a tensor consists of pieces of whole blocks, every piece has a window, and all advance together. */
#ifndef PO_STREAM_H
#define PO_STREAM_H

#include <stdint.h>
#include <string.h>

typedef struct {
    unsigned char *at; /* the buffer */
    uint32_t block;    /* first block of the tensor on the storage */
    uint32_t bytes;    /* size of a piece of the tensor */
    uint32_t pieces;   /* number of pieces */
    uint32_t pitch;    /* distance between the buffers of two pieces */
    uint32_t start;    /* first byte of the buffer in its piece */
    uint32_t end;      /* the byte after the buffer's last */
} po_window;

/* Returns `at` clamped to 0 .. `most`. */
static inline int32_t po_within(int32_t at, int32_t most) { return at < 0 ? 0 : at < most ? at : most; }

/* Advances the window to bytes `from` to `to`, if any. Bytes that are new in it are read if `reads` is 1, set to zero if
   it is 2, and left undefined if it is 0. */
static inline int po_window_to(po_window *w, uint32_t from, uint32_t to, int reads)
{
    const uint32_t first = from / PO_BLOCK_BYTES * PO_BLOCK_BYTES;
    const uint32_t whole = (to + PO_BLOCK_BYTES - 1u) / PO_BLOCK_BYTES * PO_BLOCK_BYTES;
    const uint32_t limit = whole < w->bytes ? whole : w->bytes;
    const uint32_t start = first < w->start ? first : w->start; /* `first` is before the window: a new pass begins */
    const uint32_t kept = first < w->start || w->end < first ? first : w->end;
    uint32_t k;
    int code = 0;
    if (from == to) {
        return 0;
    }
    for (k = 0; code == 0 && k < w->pieces; ++k) {
        unsigned char *at = w->at + k * w->pitch;
        if (first > start && first < kept) {
            (void)memmove(at, at + (first - start), kept - first);
        }
        if (reads == 1 && kept < to) {
            code = po_read(w->block + (k * w->bytes + kept) / PO_BLOCK_BYTES, at + (kept - first), limit - kept);
        } else if (reads && kept < to) {
            (void)memset(at + (kept - first), 0, limit - kept);
        }
    }
    w->start = first;
    w->end = !reads ? to : kept < to ? limit : kept;
    return code;
}

/* Returns the address of byte `from` of the tensor's first piece, which is in the window. */
static inline void *po_window_at(const po_window *w, uint32_t from) { return w->at + (from - w->start); }

/* Writes the window's whole blocks up to byte `to`, and at the end of a piece the remaining bytes. */
static inline int po_window_out(const po_window *w, uint32_t to)
{
    const uint32_t limit = to == w->bytes ? to : to / PO_BLOCK_BYTES * PO_BLOCK_BYTES;
    uint32_t k;
    int code = 0;
    for (k = 0; code == 0 && limit > w->start && k < w->pieces; ++k) {
        code = po_write(w->block + (k * w->bytes + w->start) / PO_BLOCK_BYTES, w->at + k * w->pitch, limit - w->start);
    }
    return code;
}

/* Reads `bytes` bytes from byte `from` on of a tensor of `blocks` blocks, by the `count` blocks that contain them. */
static inline int po_step_in(uint32_t block, uint32_t blocks, uint32_t count, uint32_t from, unsigned char *at,
                             uint32_t bytes)
{
    const uint32_t own = from / PO_BLOCK_BYTES, first = own + count < blocks ? own : blocks - count;
    const int code = po_read(block + first, at, count * PO_BLOCK_BYTES);
    (void)memmove(at, at + (from - first * PO_BLOCK_BYTES), bytes);
    return code;
}

/* Pieces of whole blocks, which are `apart` blocks apart on the storage and contiguous in RAM. */
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

/* Rows of a table by a list of row numbers, which begins with its length: positions `from` to `to`, without `to`. */
static inline int po_listed_in(const uint32_t *rows, uint32_t block, unsigned char *at, uint32_t bytes, int32_t from,
                               int32_t to)
{
    int32_t k;
    int code = 0;
    for (k = from; code == 0 && k < to && k < (int32_t)rows[0]; ++k) {
        code = po_read(block + rows[1 + k] * (bytes / PO_BLOCK_BYTES), at + (uint32_t)(k - from) * bytes, bytes);
    }
    return code;
}

static inline int po_listed_out(const uint32_t *rows, uint32_t block, const unsigned char *at, uint32_t bytes,
                                int32_t from, int32_t to)
{
    int32_t k;
    int code = 0;
    for (k = from; code == 0 && k < to && k < (int32_t)rows[0]; ++k) {
        code = po_write(block + rows[1 + k] * (bytes / PO_BLOCK_BYTES), at + (uint32_t)(k - from) * bytes, bytes);
    }
    return code;
}

#endif
