/* PO_NEXT has the number of the plan's instruction. */
${head}
{
${begin}${statements}    return PO_DONE;
}
