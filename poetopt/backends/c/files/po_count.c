/* Counts what Unicorn executes, block by block, operator by operator: it calls this before each block.

   A step calls its operators in a known order, so that the next one begins where a block of the schedule is followed by
   the entry of an operator's function; it ends with the next block of the schedule. What it calls is counted with it. */
#include <stdint.h>

enum { SCHEDULE = 1, ENTRY = 2 };

struct counts {
    uint64_t base, halfwords, columns;
    const uint64_t *before; /* [halfwords + 1][columns]: what lies before each halfword */
    const uint8_t *kind;    /* of the block that begins at a halfword */
    const uint32_t *order;  /* operators, as a step calls them */
    uint64_t calls, rest;   /* how many calls; the row of what is no operator's */
    uint64_t *sums;         /* [rest + 1][columns + 1]: the last column counts branches that were taken */
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
