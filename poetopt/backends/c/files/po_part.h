/* Runs part `part` of a batch, whose inputs are in their places: 0, 1, ... to PO_PARTS - 1, one after another. Part 0
   begins with sums of gradients that are zero. */
int po_part(uint32_t part);

/* What makes a step of the parts, once they all have run: ${last}the mean of their losses. Where it doesn't return
   PO_DONE there are no results. */
