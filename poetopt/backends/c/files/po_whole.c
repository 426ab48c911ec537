/* The number of PO_NEXT is that of the plan's instruction. */
#ifdef PO_BUDGET
int po_step_run(uint32_t *at, uint32_t budget)
#else
int po_step(void)
#endif
{
    PO_BEGIN;
${begin}${statements}${end}    PO_END;
    return PO_DONE;
}

#ifdef PO_BUDGET
int po_step(void)
{
    uint32_t at = 0;
    return po_step_run(&at, UINT32_MAX);
}
#endif
