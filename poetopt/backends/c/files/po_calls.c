/* The number behind a call is that of the plan's instruction. */
int po_step(void)
{
${begin}${statements}    return 0;
}
