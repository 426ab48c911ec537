
/* The self-test: this program and poetopt draw the same inputs, and poetopt has written down the expected results. */
typedef struct {
    int32_t least;
    uint32_t span;
    float unit;
    uint32_t later; /* elements of micro-batch 0 */
} drawn;

typedef struct {
    double total; /* sum of the elements, each with a pseudo-random sign */
    double most;  /* largest deviation of the sum; negative for integers, which are not compared */
} expected;

static const drawn inputs[] = {
${inputs}};

static const expected results[] = {
${results}};

static const expected parameters[] = {
${parameters}};
#if PO_OUTPUTS > 0u

static const drawn asked[] = {
${asked}};

static const expected outputs[] = {
${outputs}};
#endif

static uint32_t mixed(uint32_t number, uint32_t salt)
{
    number += salt * 0x9e3779b9u;
    number = (number ^ number >> 16) * 0x7feb352du;
    number = (number ^ number >> 15) * 0x846ca68bu;
    return number ^ number >> 16;
}

static uint32_t element_bytes(const char *type)
{
    const size_t last = strlen(type) - 1u;
    return type[last] == '4' ? 8u : type[last] == '2' ? 4u : 1u; /* 64 or 32 bits, otherwise 8 bits or bool */
}

static void draw(const drawn *how, const char *type, uint32_t number, uint32_t salt, unsigned char *to)
{
    const int64_t whole = how->least + (int64_t)(mixed(number, salt) % how->span);
    const float single = (float)whole * how->unit;
    const double both = (double)single;
    if (type[0] != 'f') {
        (void)memcpy(to, &whole, element_bytes(type)); /* little-endian */
    } else if (element_bytes(type) == 4u) {
        (void)memcpy(to, &single, sizeof single);
    } else {
        (void)memcpy(to, &both, sizeof both);
    }
}

HAS_BLOCK int fill(const po_tensor *tensors, const drawn *how, uint32_t count, uint32_t part)
{
    for (uint32_t k = 0; k < count; k++) {
        const po_tensor *t = &tensors[k];
        const uint32_t size = element_bytes(t->type);
        for (uint32_t at = 0; at < t->bytes; at += PO_BLOCK_BYTES) {
            unsigned char piece[PO_BLOCK_BYTES];
            const uint32_t bytes = smaller(t->bytes - at, PO_BLOCK_BYTES);
            for (uint32_t i = 0; i < bytes; i += size) {
                draw(&how[k], t->type, (at + i) / size + part * how[k].later, k, piece + i);
            }
            if (t->address != 0) {
                (void)memcpy((unsigned char *)t->address + at, piece, bytes);
            } else if (po_write(t->block + at / PO_BLOCK_BYTES, piece, bytes) != 0) {
                return PO_STORAGE;
            }
        }
    }
    return PO_DONE;
}

HAS_BLOCK int compare(const po_tensor *tensors, const expected *all, uint32_t count)
{
    for (uint32_t k = 0; k < count; k++) {
        const po_tensor *t = &tensors[k];
        const uint32_t size = element_bytes(t->type);
        double total = -all[k].total;
        for (uint32_t at = 0; all[k].most >= 0.0 && at < t->bytes; at += PO_BLOCK_BYTES) {
            unsigned char piece[PO_BLOCK_BYTES];
            const uint32_t bytes = smaller(t->bytes - at, PO_BLOCK_BYTES);
            if (t->address != 0) {
                (void)memcpy(piece, (const unsigned char *)t->address + at, bytes);
            } else if (po_read(t->block + at / PO_BLOCK_BYTES, piece, bytes) != 0) {
                return PO_STORAGE;
            }
            for (uint32_t i = 0; i < bytes; i += size) {
                float single;
                double value;
                (void)memcpy(&single, piece + i, sizeof single);
                value = (double)single;
                if (size == 8u) {
                    (void)memcpy(&value, piece + i, sizeof value);
                }
                total += (mixed((at + i) / size, 977u) & 1u) != 0u ? value : -value;
            }
        }
        if (all[k].most >= 0.0 && !(total <= all[k].most && -total <= all[k].most)) { /* also true for NaN */
            return PO_DAMAGED;
        }
    }
    return PO_DONE;
}

/* Runs a prediction and a step, and compares their results. */
static int compare_step(void)
{
    int code;
#if PO_OUTPUTS > 0u
    code = fill(po_predict_inputs, asked, PO_PREDICT_INPUTS, 0u);
    code = code == PO_DONE ? po_predict() : code;
    code = code == PO_DONE ? compare(po_outputs, outputs, PO_OUTPUTS) : code;
    if (code != PO_DONE) {
        return code;
    }
#endif
    code = fill(po_inputs, inputs, PO_INPUTS, 0u);
#if PO_PARTS > 1u
    for (uint32_t part = 0; code == PO_DONE && part < PO_PARTS; part++) {
        code = part == 0u ? PO_DONE : fill(po_inputs, inputs, PO_INPUTS, part);
        code = code == PO_DONE ? po_part(part) : code;
    }
#endif
    code = code == PO_DONE ? po_step() : code;
    code = code == PO_DONE ? compare(po_results, results, PO_RESULTS) : code;
    return code == PO_DONE ? compare(po_parameters, parameters, PO_PARAMETERS) : code;
}

int po_selftest(void)
{
    uint32_t crc;
    int code, again;
    (void)memset(po_resident, 0, PO_RESIDENT_BYTES); /* the checksum needs zeros where there is no initial value */
    code = po_load();
    code = code == PO_DONE ? visit_copy(0u, 2, &crc) : code;
    if (code != PO_DONE) {
        return code;
    }
    if (crc != ${first}u || sum(0u, po_flash, PO_FLASH_BYTES) != ${flash}u) {
        return PO_DAMAGED;
    }
    code = compare_step();
    again = po_load();
    return code != PO_DONE ? code : again;
}
