/* Runs up to `budget` instructions of a step from instruction `*at` on, if po_step.c is compiled with -DPO_BUDGET. Set
   `*at` to 0 before a step; the function advances it. PO_MORE: the step isn't finished; call it again, and no other of
   these functions before that. */
int po_step_run(uint32_t *at, uint32_t budget);

/* Runs one step. There are no results unless it returns PO_DONE. */
