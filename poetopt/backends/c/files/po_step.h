/* A step in pieces, where po_step.c is compiled with -DPO_BUDGET: until the plan's instruction `*at` + `budget`, from
   `*at` on, which is 0 where a step begins and is set here. PO_MORE: there is more to do, and nothing else of these
   functions may be called meanwhile. */
int po_step_run(uint32_t *at, uint32_t budget);

/* One step. Where it doesn't return PO_DONE there are no results. */
