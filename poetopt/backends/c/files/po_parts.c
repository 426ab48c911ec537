
/* The loss of a micro-batch, and the sum of the losses so far. */
#define PO_LOSS PO_RESIDENT(${loss}u)
#define PO_LOSSES PO_RESIDENT(${losses}u)

int po_part(uint32_t part)
{
    ${type} loss, sum;
${begin}    PO_PASS(po_run(part));
    (void)memcpy(&loss, PO_LOSS, sizeof loss);
    (void)memcpy(&sum, PO_LOSSES, sizeof sum);
    sum = part == 0u ? loss : sum + loss;
    (void)memcpy(PO_LOSSES, &sum, sizeof sum);
    return 0;
}

int po_step(void)
{
    ${type} loss;
${last}    (void)memcpy(&loss, PO_LOSSES, sizeof loss);
    loss /= (${type})PO_PARTS;
    (void)memcpy(PO_LOSS, &loss, sizeof loss);
${end}    return PO_DONE;
}
