/* Written by poetopt. One step of ${model}:
   ${does}, scheduled by its plan. README.md explains how to build and call it. */
#ifndef PO_H
#define PO_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* All RAM that the step takes, except the stack. */
#define PO_ARENA_BYTES ${arena_bytes}u
#define PO_RESIDENT_BYTES ${resident_bytes}u
/* Constants in flash. */
#define PO_FLASH_BYTES ${flash_bytes}u

/* The storage of po_read and po_write. Before the first step, po_storage.bin must be at its start. */
#define PO_BLOCK_BYTES ${block_bytes}u
#define PO_BLOCKS ${blocks}u
/* First block of the copies of po_save(). Each save writes one copy, from its first block to its last. If the device file
   has the size of erase blocks, copies start at one, so that a flash driver can erase it when its first block is
   written. Blocks before the copies are written in any order. */
#define PO_COPIES ${copies}u

/* Numbers of tensors in the tables. */
#define PO_INPUTS ${inputs}u
#define PO_RESULTS ${results}u
#define PO_PARAMETERS ${parameters}u
#define PO_HYPERPARAMETERS ${hyperparameters}u
#define PO_PREDICT_INPUTS ${asked}u
#define PO_OUTPUTS ${outputs}u

/* Number of micro-batches of a step; po_inputs has room for one of them. */
#define PO_PARTS ${parts}u

typedef struct {
    const char *name;
    const char *type; /* numpy's name of the elements' type */
    void *address; /* 0 if it isn't in RAM between steps */
    uint32_t bytes;
    uint32_t block; /* its first block on the storage if it isn't in RAM */
} po_tensor;

/* Inputs. Write them before each ${fed}, which may overwrite them: to their address or, if that is 0, to their blocks on
   the storage. */
extern const po_tensor po_inputs[];
/* Results of a step: the loss (or the outputs, if there is none), kept gradients, updated statistics. */
extern const po_tensor po_results[];
/* Trained parameters. They persist between steps, and your program may change them. Some may be on the storage. */
extern const po_tensor po_parameters[];
/* Hyperparameters of the optimizer (lr, ...), if the step updates the parameters. They keep their values until your
   program changes them. */
extern const po_tensor po_hyperparameters[];

/* The alignment is declared here, because compilers assume the alignment that they see in a declaration. */
#if defined(__GNUC__)
#define PO_ALIGNED __attribute__((aligned(8)))
#else
#define PO_ALIGNED
#endif
extern PO_ALIGNED unsigned char po_arena[PO_ARENA_BYTES];
extern PO_ALIGNED unsigned char po_resident[PO_RESIDENT_BYTES];
extern const unsigned char po_flash[];

/* Return values of the functions below. PO_DATA is returned before anything has changed. */
enum {
    PO_DONE = 0,
    PO_STORAGE = 1, /* po_read or po_write returned a value other than 0 */
    PO_DATA = 2, /* a label, index, length or target of the inputs is out of range */
    PO_ABORTED = 3, /* PO_HOOK ended the step */
    PO_OTHER = 4, /* the saved state is of another network, plan or version */
    PO_DAMAGED = 5, /* no saved state is intact */
    PO_MORE = 6 /* po_step_run used up its budget */
};

/* If po_step.c is compiled with PO_HOOK and with the header PO_CONFIG that declares it (-DPO_HOOK=hook
   -DPO_CONFIG='"hook.h"'), a step calls PO_HOOK(number) between two instructions: feed a watchdog there, or let other
   tasks run. Any value other than 0 ends the step with PO_ABORTED. The training state is then incomplete: call po_load(),
   then po_restore(). */

/* Loads parameters and constants: the initial values or, if some of them are on the storage, those of po_save. Call it
   once after each reset. If all parameters are in RAM and were saved, call po_restore() afterwards. */
int po_load(void);

/* Save and restore the training state (parameters, statistics, optimizer states, the count of steps) between two steps.
   There are two copies at the end of the storage. po_save() overwrites the older one, and writes its head block last.
   Wherever the power fails, po_restore() therefore restores the newest intact state; an interrupted step has no effect.
   Both functions need a block on the stack. */
int po_save(void);
int po_restore(void);

${steps}int po_step(void);

${predicts}${selftest}
/* Call it between two steps: it replaces the running statistics by the updated ones. */
void po_carry(void);

/* Write these two functions. They move `bytes` between RAM and the storage, from the start of block `block` on, and
   return 0 on success. `bytes` may end within the last block; po_read must not change RAM beyond it. */
int po_read(uint32_t block, void *address, uint32_t bytes);
int po_write(uint32_t block, const void *address, uint32_t bytes);

#ifdef __cplusplus
}
#endif
#endif
