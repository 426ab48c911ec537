/* A board whose storage is mapped where the emulator keeps it, so that it outlives the power.

   At COMMAND: how many steps to take after po_load(), each with a save behind it. The host is told of each write, which
   it makes itself, and of what was done. */
#include <stdint.h>
#include <string.h>

#include "po.h"

#define STORAGE 0x60000000u
#define COMMAND 0x5ffff000u
enum { WRITES = 1, LOADED = 2, STEPPED = 3, SAVED = 4, FAILED = 5 };

static void host(uint32_t operation, uintptr_t argument)
{
    register uint32_t r0 __asm__("r0") = operation;
    register uintptr_t r1 __asm__("r1") = argument;
    __asm__ volatile("bkpt 0xAB" : "+r"(r0) : "r"(r1) : "memory");
}

int po_read(uint32_t block, void *address, uint32_t bytes)
{
    (void)memcpy(address, (const void *)(STORAGE + block * PO_BLOCK_BYTES), bytes);
    return 0;
}

int po_write(uint32_t block, const void *address, uint32_t bytes)
{
    const uintptr_t what[3] = {block, (uintptr_t)address, bytes};
    host(WRITES, (uintptr_t)what);
    return 0;
}

/* An input that differs from step to step, block by block. */
static void feed(const po_tensor *input, uint32_t step)
{
    for (uint32_t at = 0; at < input->bytes; at += 4u) {
        const float value = (float)((at / 4u * 7u + step * 5u) % 11u) * 0.1f - 0.5f;
        const uint32_t label = at % 8u == 0u ? step % 3u : 0u;
        const int whole = input->type[0] == 'i' && input->type[3] == '6';
        (void)memcpy((unsigned char *)input->address + at, whole ? (const void *)&label : (const void *)&value, 4u);
    }
}

int main(void)
{
    const uint32_t steps = *(const volatile uint32_t *)COMMAND;
    int code = po_load();
    host(code == PO_DONE ? LOADED : FAILED, (uintptr_t)code);
    for (uint32_t step = 0; step < steps; step++) {
        for (uint32_t k = 0; k < PO_INPUTS; k++) {
            feed(&po_inputs[k], step);
        }
        code = po_step();
        host(code == PO_DONE ? STEPPED : FAILED, (uintptr_t)code);
        code = po_save();
        host(code == PO_DONE ? SAVED : FAILED, (uintptr_t)code);
    }
    for (;;) {
    }
}
