/* Counts the instructions that Unicorn executes for each operator. Unicorn calls po_count before each basic block.

   A step calls its operators in a known order. An operator begins when a block of the schedule is followed by the entry
   of an operator's function, and ends at the next block of the schedule. Functions that it calls count for it. */
#include <stdint.h>

enum { SCHEDULE = 1, ENTRY = 2 };

struct counts {
    uint64_t base, halfwords, columns;
    const uint64_t *before; /* [halfwords + 1][columns]: counts of all instructions before each halfword */
    const uint8_t *kind;    /* kind of the block that begins at a halfword */
    const uint32_t *order;  /* operators in the order of a step */
    uint64_t calls, rest;   /* number of calls; the row for code outside operators */
    uint64_t *sums;         /* [rest + 1][columns + 1]: the last column counts taken branches */
    uint64_t call, row, end, last;
};

void po_count(void *machine, uint64_t address, uint32_t bytes, void *data);

void po_count(void *machine, uint64_t address, uint32_t bytes, void *data)
{
    struct counts *c = data;
    const uint64_t first = (address - c->base) >> 1, end = first + (bytes >> 1);
    uint64_t *sums;
    (void)machine;
    if (end > c->halfwords) {
        return;
    }
    c->sums[c->row * (c->columns + 1) + c->columns] += first != c->end;
    if (c->kind[first] == SCHEDULE) {
        c->row = c->rest;
    } else if (c->kind[first] == ENTRY && c->last == SCHEDULE) {
        c->row = c->order[c->call % c->calls];
        c->call++;
    }
    sums = c->sums + c->row * (c->columns + 1);
    for (uint64_t k = 0; k < c->columns; k++) {
        sums[k] += c->before[end * c->columns + k] - c->before[first * c->columns + k];
    }
    c->end = end;
    c->last = c->kind[first];
}
