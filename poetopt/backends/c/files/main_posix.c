/* Example for Linux and similar systems: reads batches, trains, and writes losses and results. Files replace sensor and
   SD card.

   batches.bin   input: tensors in the order of po_inputs, one step after another (one micro-batch after another if a
                 step has several)
   hyperparameters.bin   input, optional: po_hyperparameters, one step after another; after its end they don't change
   pages.bin     the storage of po_read and po_write: po_storage.bin and free blocks; created from it if it is missing
   losses.bin    output: the loss of each step
   results.bin   output: po_results and then po_parameters, after the last step
   asked.bin     input, optional: po_predict_inputs, one prediction after another
   outputs.bin   output: po_outputs of each prediction, after the last step

   It runs a step for each batch of batches.bin. */

#include <stdint.h>
#include <stdio.h>

#include "po.h"

static FILE *pages;

static int seek(uint32_t block)
{
    return fseek(pages, (long)block * (long)PO_BLOCK_BYTES, SEEK_SET);
}

int po_read(uint32_t block, void *address, uint32_t bytes)
{
    return seek(block) != 0 || fread(address, 1, bytes, pages) != bytes;
}

int po_write(uint32_t block, const void *address, uint32_t bytes)
{
    return seek(block) != 0 || fwrite(address, 1, bytes, pages) != bytes;
}

/* Reads a tensor from a file into RAM or onto the storage; returns 0 on success. */
static int get(FILE *file, const po_tensor *tensor)
{
    unsigned char piece[PO_BLOCK_BYTES];
    if (tensor->address != NULL) {
        return fread(tensor->address, 1, tensor->bytes, file) != tensor->bytes;
    }
    for (uint32_t done = 0; done < tensor->bytes; done += PO_BLOCK_BYTES) {
        const uint32_t count = tensor->bytes - done < PO_BLOCK_BYTES ? tensor->bytes - done : PO_BLOCK_BYTES;
        if (fread(piece, 1, count, file) != count ||
            po_write(tensor->block + done / PO_BLOCK_BYTES, piece, count) != 0) {
            return 1;
        }
    }
    return 0;
}

/* Reads the tensors of the next step; returns 1 if the file has them. */
static int next(FILE *file, const po_tensor *tensors, uint32_t count)
{
    for (uint32_t k = 0; k < count; k++) {
        if (get(file, &tensors[k]) != 0) {
            return 0;
        }
    }
    return 1;
}

static int put(FILE *file, const po_tensor *tensor)
{
    unsigned char piece[PO_BLOCK_BYTES];
    if (tensor->address != NULL) {
        return fwrite(tensor->address, 1, tensor->bytes, file) != tensor->bytes;
    }
    for (uint32_t done = 0; done < tensor->bytes; done += PO_BLOCK_BYTES) {
        const uint32_t count = tensor->bytes - done < PO_BLOCK_BYTES ? tensor->bytes - done : PO_BLOCK_BYTES;
        if (po_read(tensor->block + done / PO_BLOCK_BYTES, piece, count) != 0 ||
            fwrite(piece, 1, count, file) != count) {
            return 1;
        }
    }
    return 0;
}

static int save(FILE *file, const po_tensor *tensors, uint32_t count)
{
    for (uint32_t k = 0; k < count; k++) {
        if (put(file, &tensors[k]) != 0) {
            return 1;
        }
    }
    return 0;
}

/* Creates the storage from po_storage.bin. */
static FILE *create_storage(void)
{
    unsigned char block[PO_BLOCK_BYTES];
    FILE *from = fopen("po_storage.bin", "rb");
    FILE *storage = fopen("pages.bin", "w+b");
    size_t count;
    while (from != NULL && storage != NULL && (count = fread(block, 1, sizeof block, from)) > 0) {
        (void)fwrite(block, 1, count, storage);
    }
    if (from != NULL) {
        (void)fclose(from);
    }
    return storage;
}

/* Runs a step; the inputs of the first micro-batch are already read. Returns 0 on success. */
static int step(FILE *batches)
{
#if PO_PARTS > 1u
    for (uint32_t part = 0; part < PO_PARTS; part++) {
        if ((part != 0u && !next(batches, po_inputs, PO_INPUTS)) || po_part(part) != 0) {
            return 1;
        }
    }
#else
    (void)batches;
#endif
    return po_step();
}

static int train(FILE *batches, FILE *numbers, FILE *losses)
{
    uint32_t steps = 0;
    if (po_load() != 0) {
        (void)fprintf(stderr, "the weights could not be loaded\n");
        return 1;
    }
    while (next(batches, po_inputs, PO_INPUTS)) {
        if (steps != 0) {
            po_carry();
        }
        if (numbers != NULL) {
            (void)next(numbers, po_hyperparameters, PO_HYPERPARAMETERS);
        }
        steps++;
        if (step(batches) != 0 || save(losses, po_results, 1) != 0) {
            (void)fprintf(stderr, "step %lu: the storage failed, or batches.bin ends within a batch\n", (unsigned long)steps);
            return 1;
        }
        (void)printf("step %lu: loss %g\n", (unsigned long)steps, (double)*(const float *)po_results[0].address);
    }
    return 0;
}

#if PO_OUTPUTS > 0u
/* Predicts for the inputs of asked.bin, after all steps. */
static int predict(void)
{
    FILE *asked = fopen("asked.bin", "rb");
    FILE *outputs = asked == NULL ? NULL : fopen("outputs.bin", "wb");
    int failed = asked != NULL && outputs == NULL;
    while (outputs != NULL && !failed && next(asked, po_predict_inputs, PO_PREDICT_INPUTS)) {
        failed = po_predict() != 0 || save(outputs, po_outputs, PO_OUTPUTS) != 0;
    }
    if (asked != NULL) {
        (void)fclose(asked);
    }
    return (outputs != NULL && fclose(outputs) != 0) || failed;
}
#endif

int main(void)
{
    FILE *batches = fopen("batches.bin", "rb");
    FILE *numbers = fopen("hyperparameters.bin", "rb");
    FILE *losses = fopen("losses.bin", "wb");
    FILE *results = NULL;
    int failed = batches == NULL || losses == NULL;
    pages = fopen("pages.bin", "r+b");
    if (pages == NULL) {
        pages = create_storage();
    }
    if (failed || pages == NULL) {
        (void)fprintf(stderr, "batches.bin, losses.bin or pages.bin can't be opened\n");
        return 1;
    }
    failed = train(batches, numbers, losses);
    results = failed ? NULL : fopen("results.bin", "wb");
    if (results != NULL) {
        failed = save(results, po_results, PO_RESULTS) || save(results, po_parameters, PO_PARAMETERS);
        failed = fclose(results) != 0 || failed;
    }
#if PO_OUTPUTS > 0u
    failed = failed || predict() != 0;
#endif
    failed = fclose(losses) != 0 || failed;
    if (numbers != NULL) {
        (void)fclose(numbers);
    }
    (void)fclose(batches);
    (void)fclose(pages);
    return failed || results == NULL;
}
