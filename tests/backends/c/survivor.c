/* A program that learns, saves, and loses its power: ./survivor WRITES STEPS
   takes steps and saves after each, until it was to write a block for the (WRITES + 1)-th time; prints what it holds. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "po.h"

static FILE *pages;
static long left;

int po_read(uint32_t block, void *address, uint32_t bytes)
{
    return fseek(pages, (long)block * (long)PO_BLOCK_BYTES, SEEK_SET) != 0 || fread(address, 1, bytes, pages) != bytes;
}

#ifdef SECTOR
/* As of NOR flash: what is written has to be erased before, in sectors. The power may end within each. */
static void change(uint32_t at, const void *data, uint32_t bytes)
{
    bytes = left == 0 ? bytes / 2u : bytes;
    if (fseek(pages, (long)at, SEEK_SET) != 0 || fwrite(data, 1, bytes, pages) != bytes || fflush(pages) != 0) {
        exit(10);
    }
    if (left-- == 0) {
        exit(9);
    }
}

int po_write(uint32_t block, const void *address, uint32_t bytes)
{
    for (uint32_t done = 0; done < bytes; done += PO_BLOCK_BYTES, block++) {
        const uint32_t count = bytes - done < PO_BLOCK_BYTES ? bytes - done : PO_BLOCK_BYTES;
        const uint32_t place = block * PO_BLOCK_BYTES, first = place / SECTOR * SECTOR;
        unsigned char sector[SECTOR], there[PO_BLOCK_BYTES];
        const int copied = block >= PO_COPIES;
        if (po_read(first / PO_BLOCK_BYTES, sector, SECTOR) != 0) {
            return 1;
        }
        memcpy(there, sector + place % SECTOR, PO_BLOCK_BYTES);
        if (!copied || place == first) {
            unsigned char erased[SECTOR];
            memset(erased, 0xff, SECTOR);
            memcpy(sector + place % SECTOR, (const unsigned char *)address + done, count);
            change(first, erased, SECTOR);
        } else {
            for (uint32_t k = 0; k < PO_BLOCK_BYTES; k++) {
                if (there[k] != 0xff) {
                    exit(11); /* a copy's block in no order, or twice */
                }
            }
        }
        if (copied) {
            change(place, (const unsigned char *)address + done, count);
        } else {
            change(first, sector, SECTOR);
        }
    }
    return 0;
}
#else
/* Block by block: the power may end between any two, and within one. */
int po_write(uint32_t block, const void *address, uint32_t bytes)
{
    for (uint32_t at = 0; at < bytes; at += PO_BLOCK_BYTES, block++) {
        const uint32_t count = bytes - at < PO_BLOCK_BYTES ? bytes - at : PO_BLOCK_BYTES;
        const uint32_t torn = left == 0 ? count / 2u : count;
        if (fseek(pages, (long)block * (long)PO_BLOCK_BYTES, SEEK_SET) != 0 ||
            fwrite((const unsigned char *)address + at, 1, torn, pages) != torn || fflush(pages) != 0) {
            return 1;
        }
        if (left-- == 0) {
            exit(9);
        }
    }
    return 0;
}
#endif

static uint32_t hash;

static void put(const po_tensor *tensor)
{
    for (uint32_t at = 0; at < tensor->bytes; at++) {
        unsigned char byte[PO_BLOCK_BYTES];
        if (tensor->address != 0) {
            byte[0] = ((const unsigned char *)tensor->address)[at];
        } else if (po_read(tensor->block + at / PO_BLOCK_BYTES, byte, at % PO_BLOCK_BYTES + 1u) == 0) {
            byte[0] = byte[at % PO_BLOCK_BYTES];
        }
        hash = (hash ^ byte[0]) * 16777619u;
    }
}

static void show(void)
{
    hash = 2166136261u;
    for (uint32_t k = 0; k < PO_PARAMETERS; k++) {
        put(&po_parameters[k]);
    }
    for (uint32_t k = 0; k < PO_HYPERPARAMETERS; k++) {
        put(&po_hyperparameters[k]);
    }
    printf("%08x\n", (unsigned)hash);
}

static void feed(int step)
{
    for (uint32_t k = 0; k < PO_INPUTS; k++) {
        unsigned char row[65536];
        for (uint32_t at = 0; at + 4u <= po_inputs[k].bytes; at += 4u) {
            float value = (float)((at / 4u * 7u + (uint32_t)step * 5u) % 11u) * 0.1f - 0.5f;
            if (strcmp(po_inputs[k].type, "int64") == 0) {
                const int64_t label = (int64_t)((uint32_t)step % 3u);
                memcpy(row + at / 8u * 8u, &label, 8u);
                continue;
            }
            memcpy(row + at, &value, 4u);
        }
        if (po_inputs[k].address != 0) {
            memcpy(po_inputs[k].address, row, po_inputs[k].bytes);
        } else if (po_write(po_inputs[k].block, row, po_inputs[k].bytes) != 0) {
            exit(8);
        }
    }
}

#ifdef PO_BUDGET
/* A step in pieces of PO_BUDGET instructions. */
static int pieces(void)
{
    uint32_t at = 0;
    int code = po_step_run(&at, 0u);
    while (code == PO_MORE) {
        code = po_step_run(&at, PO_BUDGET);
    }
    return code;
}
#define po_step pieces
#endif

int main(int argc, char **argv)
{
    int code;
    pages = fopen("pages.bin", "r+b");
    left = -1;
    if (argc < 3 || pages == NULL) {
        return 7;
    }
    code = po_load();
#ifdef RESTORE
    if (code == PO_DONE) {
        code = po_restore();
        code = code == PO_DAMAGED ? PO_DONE : code; /* nothing was saved yet */
    }
#endif
    if (code != PO_DONE) {
        printf("code %d\n", code);
        return 6;
    }
    show();
    left = atol(argv[1]);
    for (int step = 0; step < atoi(argv[2]); step++) {
        feed(step);
        code = po_step();
        if (code != PO_DONE) {
            printf("code %d\n", code);
            return 5;
        }
        po_carry();
        code = po_save();
        if (code != PO_DONE) {
            printf("code %d\n", code);
            return 4;
        }
        show();
    }
    printf("left %ld\n", left);
    return 0;
}
