/* Program of `poetopt run --on host`: runs a step in poisoned memory, and measures its stack and its time.

   batches.bin   input: tensors in the order of po_inputs, one micro-batch after another
   pages.bin     the storage
   results.bin   output: po_results and po_parameters after a step in poisoned memory, and again after another step
   asked.bin     input, optional: po_predict_inputs, one prediction after another
   outputs.bin   output: po_outputs of each prediction, after the first of these steps

   po_measure SECONDS prints the bytes of stack that a step takes, then the nanoseconds of each step, for SECONDS. */

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
static unsigned char *batch;
static size_t batch_bytes;
static unsigned char *stack;

int po_read(uint32_t block, void *address, uint32_t bytes)
{
    return fseek(pages, (long)block * (long)PO_BLOCK_BYTES, SEEK_SET) != 0 || fread(address, 1, bytes, pages) != bytes;
}

int po_write(uint32_t block, const void *address, uint32_t bytes)
{
    return fseek(pages, (long)block * (long)PO_BLOCK_BYTES, SEEK_SET) != 0 || fwrite(address, 1, bytes, pages) != bytes;
}

/* Undoes the changes of a step on the storage. */
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

/* Writes the inputs of a micro-batch to RAM or to the storage. */
static int feed(uint32_t part)
{
    const unsigned char *from = batch + part * batch_bytes / PO_PARTS;
    int failed = 0;
    for (uint32_t k = 0; !failed && k < PO_INPUTS; k++) {
        const po_tensor *tensor = &po_inputs[k];
        if (tensor->address != NULL) {
            (void)memcpy(tensor->address, from, tensor->bytes);
        } else {
            failed = po_write(tensor->block, from, tensor->bytes);
        }
        from += tensor->bytes;
    }
    return failed;
}

/* Reads the whole batch into separate memory, once. */
static int get(void)
{
    FILE *file = batch == NULL ? fopen("batches.bin", "rb") : NULL;
    int failed = batch == NULL && file == NULL;
    if (file != NULL) {
        for (uint32_t k = 0; k < PO_INPUTS; k++) {
            batch_bytes += PO_PARTS * (size_t)po_inputs[k].bytes;
        }
        batch = malloc(batch_bytes + 1u);
        failed = batch == NULL || fread(batch, 1, batch_bytes, file) != batch_bytes;
        (void)fclose(file);
    }
    return failed;
}

static int prepare(void)
{
    return get() != 0 || restore() != 0 || po_load() != 0 || feed(0u) != 0;
}

/* Runs a step; the inputs of the first micro-batch are already written. */
static int step(void)
{
#if PO_PARTS > 1u
    for (uint32_t part = 0; part < PO_PARTS; part++) {
        if ((part != 0u && feed(part) != 0) || po_part(part) != 0) {
            return 1;
        }
    }
#endif
    return po_step();
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

/* Reads a tensor into RAM or onto the storage; returns 0 on success. */
static int take(FILE *file, const po_tensor *tensor)
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

/* Predicts for the inputs of asked.bin. */
static int predict(void)
{
#if PO_OUTPUTS > 0u
    FILE *asked = fopen("asked.bin", "rb");
    FILE *outputs = asked == NULL ? NULL : fopen("outputs.bin", "wb");
    int failed = asked != NULL && outputs == NULL;
    while (outputs != NULL && !failed) {
        for (uint32_t k = 0; k < PO_PREDICT_INPUTS; k++) {
            if (take(asked, &po_predict_inputs[k]) != 0) {
                (void)fclose(asked);
                return fclose(outputs) != 0;
            }
        }
        failed = po_predict();
        for (uint32_t k = 0; k < PO_OUTPUTS; k++) {
            failed |= put(outputs, &po_outputs[k]);
        }
    }
    return failed;
#else
    return 0;
#endif
}

/* Runs a step on the painted `stack`. The bytes below `top` that have changed are the stack of the step. */
static void *deep(void *failed)
{
    unsigned char top = 0;
    const size_t high = (size_t)(&top - stack);
    size_t low = 0;
    *(int *)failed = step();
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
    if (prepare() || on_painted_stack() || save(results) || predict() || prepare() || step() || save(results)) {
        return 1;
    }
    start = now();
    for (int k = 0; k < MOST && now() - start < limit; k++) {
        double before;
        if (prepare()) {
            return 1;
        }
        before = now();
        if (step()) {
            return 1;
        }
        (void)printf("%.0f\n", now() - before);
    }
    return fclose(results) != 0;
}
