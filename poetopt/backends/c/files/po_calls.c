/* The number behind a call is that of the plan's instruction. */
${head}
{
${begin}${statements}${end}    return PO_DONE;
}
