/* Written by poetopt: saves and restores the training state of ${model}, in two copies on the storage. */

#include <string.h>

#include "po.h"

/* A copy consists of the training state, each tensor from a separate block on, and of a head block. The head is written
   last: until then, wherever the power fails, the other copy is intact. */
#define MAGIC 0x706f7031u
#define COPY(which) (${first}u + (which) * ${blocks}u)
#define HEAD(which) (COPY(which) + ${data}u)
#define KEPT ${count}u

/* Functions with a block on the stack are never inlined, so that a caller doesn't have several blocks there. */
#if defined(__GNUC__)
#define HAS_BLOCK static __attribute__((noinline))
#else
#define HAS_BLOCK static
#endif

typedef struct {
    unsigned char *address; /* 0 if it is on the storage */
    uint32_t bytes;
    uint32_t block;
} kept;

static const kept all[KEPT] = {
${kept}};

typedef struct {
    uint32_t magic;
    uint32_t generation; /* from 1 on */
    uint32_t network[4];
    uint32_t data;  /* checksum of the training state */
    uint32_t check; /* checksum of the fields above */
} head;

static const uint32_t network[4] = {${network}};

/* CRC-32, four bits at a time. */
static uint32_t sum(uint32_t crc, const unsigned char *data, uint32_t bytes)
{
    static const uint32_t table[16] = {
        0x00000000u, 0x1db71064u, 0x3b6e20c8u, 0x26d930acu, 0x76dc4190u, 0x6b6b51f4u, 0x4db26158u, 0x5005713cu,
        0xedb88320u, 0xf00f9344u, 0xd6d6a3e8u, 0xcb61b38cu, 0x9b64c2b0u, 0x86d3d2d4u, 0xa00ae278u, 0xbdbdf21cu,
    };
    crc = ~crc;
    for (uint32_t k = 0; k < bytes; k++) {
        crc = table[(crc ^ data[k]) & 15u] ^ (crc >> 4);
        crc = table[(crc ^ ((uint32_t)data[k] >> 4)) & 15u] ^ (crc >> 4);
    }
    return ~crc;
}

static uint32_t smaller(uint32_t a, uint32_t b) { return a < b ? a : b; }

/* Reads the head of a copy; returns PO_DONE if it is one of this network. */
static int read_head(uint32_t which, head *found)
{
    if (po_read(HEAD(which), found, (uint32_t)sizeof *found) != 0) {
        return PO_STORAGE;
    }
    if (found->magic != MAGIC || found->check != sum(0u, (const unsigned char *)found, (uint32_t)sizeof *found - 4u)) {
        return PO_DAMAGED;
    }
    return memcmp(found->network, network, sizeof network) == 0 ? PO_DONE : PO_OTHER;
}

/* Visits a copy block by block, and computes the checksum. `into` is 1 to save the training state, 0 to restore it, -1 to
   check the copy, and 2 to check the training state. */
HAS_BLOCK int visit_copy(uint32_t which, int into, uint32_t *crc)
{
    uint32_t there = COPY(which);
    *crc = 0;
    for (uint32_t k = 0; k < KEPT; k++) {
        for (uint32_t at = 0; at < all[k].bytes; at += PO_BLOCK_BYTES, there++) {
            unsigned char piece[PO_BLOCK_BYTES];
            const uint32_t bytes = smaller(all[k].bytes - at, PO_BLOCK_BYTES);
            const uint32_t block = all[k].block + at / PO_BLOCK_BYTES;
            if (into > 0 && all[k].address != 0) {
                (void)memcpy(piece, all[k].address + at, bytes);
            } else if (po_read(into > 0 ? block : there, piece, bytes) != 0) {
                return PO_STORAGE;
            }
            *crc = sum(*crc, piece, bytes);
            if (into == 0 && all[k].address != 0) {
                (void)memcpy(all[k].address + at, piece, bytes);
            } else if ((into == 0 || into == 1) && po_write(into > 0 ? there : block, piece, bytes) != 0) {
                return PO_STORAGE;
            }
        }
    }
    return PO_DONE;
}

int po_save(void)
{
    head heads[2];
    head next = {MAGIC, 1u, {0u, 0u, 0u, 0u}, 0u, 0u};
    uint32_t which = 0;
    int code;
    po_carry();
    for (uint32_t k = 0; k < 2u; k++) {
        code = read_head(k, &heads[k]);
        if (code == PO_STORAGE) {
            return code;
        }
        if (code != PO_DONE) {
            heads[k].generation = 0;
        }
    }
    which = heads[1].generation < heads[0].generation ? 1u : 0u; /* the older copy */
    next.generation = heads[1u - which].generation + 1u;
    (void)memcpy(next.network, network, sizeof network);
    code = visit_copy(which, 1, &next.data);
    if (code != PO_DONE) {
        return code;
    }
    next.check = sum(0u, (const unsigned char *)&next, (uint32_t)sizeof next - 4u);
    return po_write(HEAD(which), &next, (uint32_t)sizeof next) == 0 ? PO_DONE : PO_STORAGE;
}

int po_restore(void)
{
    head heads[2];
    int codes[2];
    uint32_t which;
    for (uint32_t k = 0; k < 2u; k++) {
        codes[k] = read_head(k, &heads[k]);
        if (codes[k] == PO_STORAGE) {
            return PO_STORAGE;
        }
    }
    which = codes[1] == PO_DONE && (codes[0] != PO_DONE || heads[1].generation > heads[0].generation) ? 1u : 0u;
    for (uint32_t tries = 0; tries < 2u; tries++, which = 1u - which) {
        uint32_t crc;
        if (codes[which] == PO_DONE) {
            int code = visit_copy(which, -1, &crc);
            if (code == PO_DONE && crc == heads[which].data) {
                return visit_copy(which, 0, &crc);
            }
            if (code != PO_DONE) {
                return code;
            }
        }
    }
    return codes[0] == PO_OTHER || codes[1] == PO_OTHER ? PO_OTHER : PO_DAMAGED;
}
${selftest}