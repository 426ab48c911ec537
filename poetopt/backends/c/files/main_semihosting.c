/* Example for a board with a debugger, or an emulator: files of the host, by semihosting, replace sensor and SD card.

   batches.bin   input: tensors in the order of po_inputs, one step after another (one micro-batch after another if a
                 step has several)
   hyperparameters.bin   input, optional: po_hyperparameters, one step after another; after its end they don't change
   pages.bin     the storage of po_read and po_write: po_storage.bin, with room for PO_BLOCKS blocks
   losses.bin    output: the loss of each step
   results.bin   output: po_results and then po_parameters, after the last step
   asked.bin     input, optional: po_predict_inputs, one prediction after another
   outputs.bin   output: po_outputs of each prediction, after the last step

   It runs a step for each batch of batches.bin. It uses no other RAM than that of the step and the stack. */

#include <stdint.h>

#include "po.h"

enum { SYS_OPEN = 1, SYS_CLOSE = 2, SYS_WRITE = 5, SYS_READ = 6, SYS_SEEK = 10, SYS_EXIT = 0x18 };
enum { READ = 1, CHANGE = 3, CREATE = 5 }; /* modes of SYS_OPEN: "rb", "r+b", "wb" */
enum { STOPPED = 0x20026, FAILED = 0x20023 };

static int32_t host(int32_t operation, uintptr_t argument)
{
    register int32_t r0 __asm__("r0") = operation;
    register uintptr_t r1 __asm__("r1") = argument;
    __asm__ volatile("bkpt 0xAB" : "+r"(r0) : "r"(r1) : "memory");
    return r0;
}

static int32_t file_open(const char *name, uint32_t length, uint32_t mode)
{
    const uintptr_t block[3] = {(uintptr_t)name, mode, length};
    return host(SYS_OPEN, (uintptr_t)block);
}

static void file_close(int32_t file)
{
    const uintptr_t block[1] = {(uintptr_t)file};
    (void)host(SYS_CLOSE, (uintptr_t)block);
}

/* Reads or writes a file; returns the number of bytes that were not transferred. */
static int32_t file_move(int32_t operation, int32_t file, const void *address, uint32_t bytes)
{
    const uintptr_t block[3] = {(uintptr_t)file, (uintptr_t)address, bytes};
    return bytes ? host(operation, (uintptr_t)block) : 0;
}

/* Transfers bytes of the storage. The file is opened for each transfer, so that no handle takes RAM. */
static int page(int32_t operation, uint32_t block, const void *address, uint32_t bytes)
{
    const int32_t file = file_open("pages.bin", 9u, CHANGE);
    const uintptr_t place[2] = {(uintptr_t)file, (uintptr_t)block * PO_BLOCK_BYTES};
    int32_t left = 1;
    if (file < 0) {
        return 1;
    }
    if (host(SYS_SEEK, (uintptr_t)place) == 0) {
        left = file_move(operation, file, address, bytes);
    }
    file_close(file);
    return left != 0;
}

int po_read(uint32_t block, void *address, uint32_t bytes)
{
    return page(SYS_READ, block, address, bytes);
}

int po_write(uint32_t block, const void *address, uint32_t bytes)
{
    return page(SYS_WRITE, block, address, bytes);
}

/* Reads a tensor from a file into RAM or onto the storage; returns 0 on success. */
static int get(int32_t file, const po_tensor *tensor)
{
    unsigned char piece[64]; /* as in `save` */
    const int32_t storage = tensor->address == 0 ? file_open("pages.bin", 9u, CHANGE) : -1;
    const uintptr_t place[2] = {(uintptr_t)storage, (uintptr_t)tensor->block * PO_BLOCK_BYTES};
    int failed = 0;
    if (tensor->address != 0) {
        return file_move(SYS_READ, file, tensor->address, tensor->bytes) != 0;
    }
    (void)host(SYS_SEEK, (uintptr_t)place);
    for (uint32_t done = 0; !failed && done < tensor->bytes; done += sizeof piece) {
        const uint32_t left = tensor->bytes - done;
        const uint32_t bytes = left < sizeof piece ? left : (uint32_t)sizeof piece;
        failed = file_move(SYS_READ, file, piece, bytes) != 0 || file_move(SYS_WRITE, storage, piece, bytes) != 0;
    }
    file_close(storage);
    return failed;
}

/* Reads the tensors of the next step; returns 1 if the file has them. */
static int next(int32_t file, const po_tensor *tensors, uint32_t count)
{
    for (uint32_t k = 0; k < count; k++) {
        if (get(file, &tensors[k]) != 0) {
            return 0;
        }
    }
    return 1;
}

static void save(int32_t file, const po_tensor *tensors, uint32_t count)
{
    for (uint32_t k = 0; k < count; k++) {
        unsigned char piece[64]; /* the stack is small, and blocks are multiples of 64 bytes */
        const int32_t storage = tensors[k].address == 0 ? file_open("pages.bin", 9u, READ) : -1;
        const uintptr_t place[2] = {(uintptr_t)storage, (uintptr_t)tensors[k].block * PO_BLOCK_BYTES};
        if (tensors[k].address != 0) {
            (void)file_move(SYS_WRITE, file, tensors[k].address, tensors[k].bytes);
            continue;
        }
        (void)host(SYS_SEEK, (uintptr_t)place);
        for (uint32_t done = 0; done < tensors[k].bytes; done += sizeof piece) {
            const uint32_t left = tensors[k].bytes - done;
            const uint32_t bytes = left < sizeof piece ? left : (uint32_t)sizeof piece;
            (void)file_move(SYS_READ, storage, piece, bytes);
            (void)file_move(SYS_WRITE, file, piece, bytes);
        }
        file_close(storage);
    }
}

/* Runs a step; the inputs of the first micro-batch are already read. Returns 0 on success. */
static int step(int32_t batches)
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

static int train(void)
{
    const int32_t batches = file_open("batches.bin", 11u, READ);
    const int32_t numbers = file_open("hyperparameters.bin", 19u, READ);
    const int32_t losses = file_open("losses.bin", 10u, CREATE);
    int32_t results;
    int failed = batches < 0 || losses < 0 || po_load() != 0;
    for (int steps = 0; !failed && next(batches, po_inputs, PO_INPUTS); steps = 1) {
        if (steps) {
            po_carry();
        }
        if (numbers >= 0) {
            (void)next(numbers, po_hyperparameters, PO_HYPERPARAMETERS);
        }
        failed = step(batches);
        save(losses, po_results, 1u);
    }
    if (numbers >= 0) {
        file_close(numbers);
    }
    if (losses >= 0) {
        file_close(losses);
    }
    if (batches >= 0) {
        file_close(batches);
    }
    results = file_open("results.bin", 11u, CREATE);
    if (results < 0) {
        return 1;
    }
    save(results, po_results, PO_RESULTS);
    save(results, po_parameters, PO_PARAMETERS);
    file_close(results);
    return failed;
}

#if PO_OUTPUTS > 0u
/* Predicts for the inputs of asked.bin, after all steps. */
static int predict(void)
{
    const int32_t asked = file_open("asked.bin", 9u, READ);
    int32_t outputs;
    int failed = 0;
    if (asked < 0) {
        return 0;
    }
    outputs = file_open("outputs.bin", 11u, CREATE);
    while (outputs >= 0 && !failed && next(asked, po_predict_inputs, PO_PREDICT_INPUTS)) {
        failed = po_predict();
        save(outputs, po_outputs, PO_OUTPUTS);
    }
    if (outputs >= 0) {
        file_close(outputs);
    }
    file_close(asked);
    return failed || outputs < 0;
}
#endif

int main(void)
{
    int failed = train();
#if PO_OUTPUTS > 0u
    failed = failed || predict();
#endif
    (void)host(SYS_EXIT, failed ? FAILED : STOPPED);
    return 0;
}
