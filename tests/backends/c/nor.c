/* A NOR flash for driver_nor.c: bits are cleared by programming, in pages, and set by erasing, in sectors; it forgets to
   change anything without being enabled. The power ends in the CUT-th change. Steps and saves as often as STEPS says. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "po.h"

#define SECTOR 4096u
#define BYTES ((PO_BLOCKS * PO_BLOCK_BYTES + SECTOR - 1u) / SECTOR * SECTOR)
void nor_select(int chosen);
uint8_t nor_byte(uint8_t byte);

static uint8_t flash[BYTES], sent[4 + 256];
static uint32_t count, erases[BYTES / SECTOR];
static long left;
static int enabled, busy;

static void put(void)
{
    FILE *file = fopen("flash.bin", "wb");
    if (file == NULL || fwrite(flash, 1, BYTES, file) != BYTES || fclose(file) != 0) {
        exit(8);
    }
}

static void change(void)
{
    const uint32_t at = (uint32_t)sent[1] << 16 | (uint32_t)sent[2] << 8 | sent[3];
    const uint32_t whole = sent[0] == 0x20 ? SECTOR : count - 4u, bytes = left == 0 ? whole / 2u : whole;
    for (uint32_t k = 0; k < bytes; k++) {
        if (sent[0] == 0x20) {
            flash[at / SECTOR * SECTOR + k] = 0xff;
        } else {
            flash[at / 256u * 256u + (at + k) % 256u] &= sent[4u + k];
        }
    }
    erases[at / SECTOR] += sent[0] == 0x20;
    enabled = 0;
    busy = 3;
    if (left-- == 0) {
        put();
        exit(9);
    }
}

void nor_select(int chosen)
{
    if (!chosen && count > 0u) {
        if (sent[0] == 0x06) {
            enabled = 1;
        } else if ((sent[0] == 0x20 || sent[0] == 0x02) && enabled && busy == 0) {
            change();
        }
    }
    count = 0;
}

uint8_t nor_byte(uint8_t byte)
{
    uint8_t answer = 0xff;
    if (count >= 4u && sent[0] == 0x03) {
        answer = flash[((uint32_t)sent[1] << 16 | (uint32_t)sent[2] << 8 | sent[3]) + count - 4u];
    } else if (count >= 1u && sent[0] == 0x05) {
        answer = busy > 0;
        busy -= busy > 0;
    }
    if (count < sizeof sent) {
        sent[count] = byte;
    }
    count++;
    return answer;
}

int main(int argc, char **argv)
{
    FILE *file = fopen("flash.bin", "rb");
    int code;
    uint32_t most = 0, hash = 2166136261u;
    memset(flash, 0, BYTES);
    if (argc < 3 || (file != NULL && fread(flash, 1, BYTES, file) != BYTES)) {
        return 7;
    }
    left = atol(argv[1]);
    code = po_load();
    if (code == PO_DONE) {
        code = po_restore();
    }
    for (int step = 0; (code == PO_DONE || code == PO_DAMAGED) && step <= atoi(argv[2]); step++) {
        if (step > 0) {
            memset(po_arena, 0, PO_ARENA_BYTES); /* the batch */
            code = po_step();
            code = code == PO_DONE ? po_save() : code;
        }
        hash = 2166136261u;
        for (uint32_t k = 0; k < PO_RESIDENT_BYTES; k++) {
            hash = (hash ^ po_resident[k]) * 16777619u;
        }
        printf("%08x\n", (unsigned)hash);
    }
    for (uint32_t k = 0; k < BYTES / SECTOR; k++) {
        most = most < erases[k] ? erases[k] : most;
    }
    put();
    printf("%d %u %ld\n", code, (unsigned)most, left);
    return 0;
}
