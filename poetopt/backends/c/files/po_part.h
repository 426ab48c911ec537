/* Runs micro-batch `part`, whose inputs are written. Call it with 0, 1, ... PO_PARTS - 1, in this order. Micro-batch 0
   sets the sums of gradients to zero. */
int po_part(uint32_t part);

/* Completes the step after all micro-batches: ${last}the mean of their losses. There are no results unless it returns
   PO_DONE. */
