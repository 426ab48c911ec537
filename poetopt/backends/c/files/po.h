/* Written by poetopt. One step of ${model}:
   ${does}, scheduled by its plan. README.md says how it is built and called. */
#ifndef PO_H
#define PO_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* All RAM that the step takes beside the stack, to the byte. */
#define PO_ARENA_BYTES ${arena_bytes}u
#define PO_RESIDENT_BYTES ${resident_bytes}u
/* Constants, in flash for good. */
#define PO_FLASH_BYTES ${flash_bytes}u

/* The storage that po_read and po_write move bytes from and to. Before the first step, po_storage.bin is at its start. */
#define PO_BLOCK_BYTES ${block_bytes}u
#define PO_BLOCKS ${blocks}u
/* From this block on there are the copies of po_save(), each written from its first block to its last once a save. They
   begin with erase blocks, if the device file says what these are: of flash, a driver erases one as its first block is
   written. What is before them is written in any order. */
#define PO_COPIES ${copies}u

/* How many tensors the tables have. */
#define PO_INPUTS ${inputs}u
#define PO_RESULTS ${results}u
#define PO_PARAMETERS ${parameters}u
#define PO_HYPERPARAMETERS ${hyperparameters}u
#define PO_PREDICT_INPUTS ${asked}u
#define PO_OUTPUTS ${outputs}u

/* In how many parts a step takes its batch; po_inputs has room for one of them. */
#define PO_PARTS ${parts}u

typedef struct {
    const char *name;
    const char *type; /* of an element, in numpy's words */
    void *address; /* 0: it isn't in RAM between steps */
    uint32_t bytes;
    uint32_t block; /* where it begins on the storage, if it isn't in RAM */
} po_tensor;

/* To be written before each ${fed}, which may use their memory for something else: to their address or, where that is 0, to
   their blocks on the storage. */
extern const po_tensor po_inputs[];
/* There after a step: the loss or, without one, the outputs, then gradients where they are kept, then updated statistics. */
extern const po_tensor po_results[];
/* What is trained. It stays from step to step, and is the program's to change. Some may be on the storage. */
extern const po_tensor po_parameters[];
/* Numbers of the optimizer, where the step updates the parameters (lr, ...). They stay until they are changed. */
extern const po_tensor po_hyperparameters[];

/* Where both begin is said here: what a compiler takes for granted of an array goes by what it sees of it. */
#if defined(__GNUC__)
#define PO_ALIGNED __attribute__((aligned(8)))
#else
#define PO_ALIGNED
#endif
extern PO_ALIGNED unsigned char po_arena[PO_ARENA_BYTES];
extern PO_ALIGNED unsigned char po_resident[PO_RESIDENT_BYTES];
extern const unsigned char po_flash[];

/* What the functions below return. After PO_DATA nothing has changed. */
enum {
    PO_DONE = 0,
    PO_STORAGE = 1, /* po_read or po_write has returned something else than 0 */
    PO_DATA = 2, /* a label, an index, a length or a truth of the inputs is out of its range */
    PO_ABORTED = 3, /* PO_HOOK has ended the step */
    PO_OTHER = 4, /* what was saved is of another network, plan or version */
    PO_DAMAGED = 5, /* nothing that was saved is whole */
    PO_MORE = 6 /* the budget of po_step_run is used up */
};

/* Between two instructions a step asks PO_HOOK(number), if that is defined as po_step.c is compiled, beside the header
   PO_CONFIG that declares it (-DPO_HOOK=hook -DPO_CONFIG='"hook.h"'): feed a watchdog there, or let others run. All but
   0 ends the step with PO_ABORTED; what was to last is of no step then, until po_load(), and po_restore() behind it. */

/* Gives parameters and constants their values: the first ones, or those that po_save kept where some of them are on the
   storage. Call it once after each reset, then po_restore() where they are all in RAM and have been saved. */
int po_load(void);

/* All that lasts from step to step (parameters, statistics, optimizer states, the count of steps) as it is between two
   steps, in two copies behind all else on the storage. po_save() writes over the older one, and its first block last:
   wherever the power ends, po_restore() gives one whole generation, the newest. So a step that is cut short never
   happened. They need a block on the stack. */
int po_save(void);
int po_restore(void);

${steps}int po_step(void);

${predicts}${selftest}
/* Call it between one step and the next: running statistics take the place of those before the step. */
void po_carry(void);

/* Yours to write: move `bytes` between RAM and the storage, from the start of block `block` on. They return 0 when that
   is done. Of the last block, `bytes` may end anywhere: no other byte of RAM may be changed. */
int po_read(uint32_t block, void *address, uint32_t bytes);
int po_write(uint32_t block, const void *address, uint32_t bytes);

#ifdef __cplusplus
}
#endif
#endif
