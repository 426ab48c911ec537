/* PO_NEXT has the number of the plan's instruction. */
${head}
{
${begin}${statements}${end}    return PO_DONE;
}
