/* Counts what Unicorn executes, block by block: it calls this before each. */
#include <stdint.h>

struct counts {
    uint64_t base, halfwords;
    int64_t *change; /* where executions begin less where they end, by halfword */
};

void po_count(void *machine, uint64_t address, uint32_t bytes, void *data);

void po_count(void *machine, uint64_t address, uint32_t bytes, void *data)
{
    struct counts *counts = data;
    const uint64_t first = (address - counts->base) >> 1;
    (void)machine;
    if (first + (bytes >> 1) < counts->halfwords) {
        counts->change[first]++;
        counts->change[first + (bytes >> 1)]--;
    }
}
