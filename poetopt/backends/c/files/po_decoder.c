/* The plan in its compact form, without head and checksum: every operator is computed once in order, and what differs
   is listed: recomputes, page-outs, page-ins, and what streams operands. Where buffers are freed follows behind, and isn't needed here, for
   offsets are given: those of each instruction's operands, one instruction after another, in units of ${unit} bytes. */
static const uint8_t po_plan[${plan_bytes}] = {
${plan}};

static const ${offset_type} po_offsets[] = {
${offsets}};

/* The first tensor that each operator writes, and the first that it reads: what paged tensors are told by. */
static const uint16_t po_first_written[${count}] = {
${written}};

static const uint16_t po_first_read[${count}] = {
${read}};

#define PO_OPERAND(k) PO_ARENA((uint32_t)at[k] * ${unit}u)

/* Runs an operator; how many operands it has. */
static uint32_t po_compute(uint32_t operator, const ${offset_type} *at)
{
    (void)at;
    switch (operator) {
${operators}    default:
        return 0;
    }
}

/* Runs an operator by one of its ways to stream operands. */
static int po_stream(uint32_t operator, uint32_t way, const ${offset_type} *at, const ${offset_type} **next${taking})
{
    (void)at;
${ignored}    *next = at;
    switch (operator * ${ways}u + way) {
${streamed}    default:
        return 1;
    }
}

/* Moves a tensor to storage, or back. */
static int po_page(uint32_t tensor, int out, void *address${taking})
{
    (void)out;
    (void)address;
${ignored}    switch (tensor) {
${tensors}    default:
        return 1;
    }
}

/* Seven bits a byte, the low ones first; the top bit says that more follow. */
static uint32_t po_number(const uint8_t **place)
{
    uint32_t value = 0;
    uint32_t shift = 0;
    uint8_t byte;
    do {
        byte = *(*place)++;
        value |= (uint32_t)(byte & 127u) << shift;
        shift += 7u;
    } while (byte >= 128u);
    return value;
}

${head}
{
    const uint8_t *place = po_plan;
    const ${offset_type} *at = po_offsets;
    uint32_t ahead = 0;      /* operators that were computed for the first time */
    uint32_t recomputed = 0; /* the operator that was recomputed last */
${begin}    for (uint32_t left = po_number(&place); left > 0; left--) {
        const uint32_t word = po_number(&place);
        const uint32_t next = ahead + (word >> 2);
        uint32_t code;
        uint32_t target;
        while (ahead < next) {
            PO_NEXT(ahead);
            at += po_compute(ahead, at);
            ahead++;
        }
        PO_NEXT(ahead);
        code = po_number(&place);
        target = (code & 1u) != 0 ? ~(code >> 1) : code >> 1; /* a difference to what was to be expected */
        switch (word & 3u) {
        case 0:
            recomputed += target;
            at += po_compute(recomputed, at);
            break;
        case 1:
            target += ahead > 0 ? po_first_written[ahead - 1u] : 0u;
            PO_TRY(po_page(target, 1, PO_OPERAND(0)${giving}));
            at++;
            break;
        case 2:
            target += ahead < ${count}u ? po_first_read[ahead] : 0u;
            PO_TRY(po_page(target, 0, PO_OPERAND(0)${giving}));
            at++;
            break;
        default:
            target += ahead;
            PO_TRY(po_stream(target, po_number(&place), at, &at${giving}));
            if (target == ahead) {
                ahead++;
            } else {
                recomputed = target;
            }
            break;
        }
    }
    while (ahead < ${count}u) {
        PO_NEXT(ahead);
        at += po_compute(ahead, at);
        ahead++;
    }
${end}    return PO_DONE;
}
