/* The number of PO_NEXT is that of the plan's instruction. */
${head}
{
${begin}${statements}    return PO_DONE;
}
