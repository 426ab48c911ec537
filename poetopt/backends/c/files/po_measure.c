/* What `poetopt run --on host` runs a step with: poisoned memory, a painted stack, a clock.

   batches.bin   the inputs, in the order of po_inputs
   pages.bin     the storage
   results.bin   is written: po_results and po_parameters after a step in poisoned memory, and again after another one

   po_measure SECONDS prints the bytes of stack that a step takes, then nanoseconds of steps, for about so long. */

#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "po.h"

enum { STACK = 1 << 20, PAINT = 0xA5, POISON = 0xFF, MOST = 1000 };

static FILE *pages;
static unsigned char *stack;

int po_read(uint32_t block, void *address, uint32_t bytes)
{
    return fseek(pages, (long)block * (long)PO_BLOCK_BYTES, SEEK_SET) != 0 || fread(address, 1, bytes, pages) != bytes;
}

int po_write(uint32_t block, const void *address, uint32_t bytes)
{
    return fseek(pages, (long)block * (long)PO_BLOCK_BYTES, SEEK_SET) != 0 || fwrite(address, 1, bytes, pages) != bytes;
}

/* What a step has changed on the storage is as it was. */
static int restore(void)
{
    unsigned char block[PO_BLOCK_BYTES];
    FILE *file = fopen("po_storage.bin", "rb");
    size_t count;
    int failed = file == NULL || fseek(pages, 0, SEEK_SET) != 0;
    while (!failed && (count = fread(block, 1, sizeof block, file)) > 0) {
        failed = fwrite(block, 1, count, pages) != count;
    }
    if (file != NULL) {
        (void)fclose(file);
    }
    return failed;
}

/* A tensor of a batch to its place, which may be on the storage. */
static int get(FILE *file, const po_tensor *tensor)
{
    unsigned char piece[PO_BLOCK_BYTES];
    int failed = 0;
    if (tensor->address != NULL) {
        return fread(tensor->address, 1, tensor->bytes, file) != tensor->bytes;
    }
    for (uint32_t done = 0; !failed && done < tensor->bytes; done += PO_BLOCK_BYTES) {
        const uint32_t count = tensor->bytes - done < PO_BLOCK_BYTES ? tensor->bytes - done : PO_BLOCK_BYTES;
        failed = fread(piece, 1, count, file) != count ||
                 po_write(tensor->block + done / PO_BLOCK_BYTES, piece, count) != 0;
    }
    return failed;
}

static int prepare(void)
{
    FILE *file = fopen("batches.bin", "rb");
    int failed = file == NULL || restore() != 0 || po_load() != 0;
    for (uint32_t k = 0; !failed && k < PO_INPUTS; k++) {
        failed = get(file, &po_inputs[k]);
    }
    if (file != NULL) {
        (void)fclose(file);
    }
    return failed;
}

static int put(FILE *file, const po_tensor *tensor)
{
    unsigned char piece[PO_BLOCK_BYTES];
    int failed = 0;
    if (tensor->address != NULL) {
        return fwrite(tensor->address, 1, tensor->bytes, file) != tensor->bytes;
    }
    for (uint32_t done = 0; !failed && done < tensor->bytes; done += PO_BLOCK_BYTES) {
        const uint32_t count = tensor->bytes - done < PO_BLOCK_BYTES ? tensor->bytes - done : PO_BLOCK_BYTES;
        failed = po_read(tensor->block + done / PO_BLOCK_BYTES, piece, count) != 0 ||
                 fwrite(piece, 1, count, file) != count;
    }
    return failed;
}

static int save(FILE *file)
{
    int failed = 0;
    for (uint32_t k = 0; k < PO_RESULTS; k++) {
        failed |= put(file, &po_results[k]);
    }
    for (uint32_t k = 0; k < PO_PARAMETERS; k++) {
        failed |= put(file, &po_parameters[k]);
    }
    return failed;
}

/* Runs on `stack`, which is painted: what isn't any more afterwards, below `top`, the step took. */
static void *deep(void *failed)
{
    unsigned char top = 0;
    const size_t high = (size_t)(&top - stack);
    size_t low = 0;
    *(int *)failed = po_step();
    while (low < high && stack[low] == PAINT) {
        low++;
    }
    (void)printf("%lu\n", (unsigned long)(high - low));
    return NULL;
}

static int on_painted_stack(void)
{
    pthread_attr_t attributes;
    pthread_t thread;
    int failed = 1;
    void *memory = NULL;
    if (posix_memalign(&memory, 4096, STACK) != 0) {
        return 1;
    }
    stack = memory;
    (void)memset(stack, PAINT, STACK);
    if (pthread_attr_init(&attributes) != 0 || pthread_attr_setstack(&attributes, memory, STACK) != 0 ||
        pthread_create(&thread, &attributes, deep, &failed) != 0 || pthread_join(thread, NULL) != 0) {
        return 1;
    }
    free(memory);
    return failed;
}

static double now(void)
{
    struct timespec time;
    (void)clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

int main(int count, char **words)
{
    const double limit = 1e9 * (count > 1 ? atof(words[1]) : 0.0);
    FILE *results = fopen("results.bin", "wb");
    double start;
    pages = fopen("pages.bin", "r+b");
    if (results == NULL || pages == NULL) {
        return 1;
    }
    (void)memset(po_arena, POISON, PO_ARENA_BYTES);
    (void)memset(po_resident, POISON, PO_RESIDENT_BYTES);
    if (prepare() || on_painted_stack() || save(results) || prepare() || po_step() || save(results)) {
        return 1;
    }
    start = now();
    for (int k = 0; k < MOST && now() - start < limit; k++) {
        double before;
        if (prepare()) {
            return 1;
        }
        before = now();
        if (po_step()) {
            return 1;
        }
        (void)printf("%.0f\n", now() - before);
    }
    return fclose(results) != 0;
}
