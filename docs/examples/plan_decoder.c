/* Decodes a compact plan on a device: docs/compact-plan.md has the layout.

   The problem's tables are constants of the firmware: which tensors each operator reads and writes, and which are the
   graph's inputs. Tensors of operator k are t[at[k]] .. t[at[k + 1] - 1], ascending. Memory is the caller's. No
   byte of the plan is trusted: whatever is damaged, cut short or of another problem is refused. */

#include <stddef.h>
#include <stdint.h>

enum action { COMPUTE = 0, PAGE_OUT = 1, PAGE_IN = 2, FREE = 3 };

struct problem {
    uint8_t fingerprint[4];
    uint16_t operators, tensors, inputs;
    const uint16_t *input;              /* the graph's inputs */
    const uint16_t *read, *read_at;     /* what operators read */
    const uint16_t *write, *write_at;   /* what operators write */
};

struct step { uint8_t action; uint16_t target; };

struct memory {
    struct step *event; size_t events;  /* room for computes and transfers */
    uint16_t *freed; size_t frees;      /* room for what is freed by default */
    size_t *freed_at;                   /* events + 2 */
    uint8_t *mark;                      /* 2 * tensors */
};

struct reader { const uint8_t *at, *end; int bad; };

static uint32_t crc32_of(const uint8_t *p, size_t n) {
    uint32_t c = 0xFFFFFFFFu;
    while (n--) {
        c ^= *p++;
        for (int k = 0; k < 8; k++) c = c >> 1 ^ (c & 1 ? 0xEDB88320u : 0);
    }
    return ~c;
}

static uint32_t number(struct reader *r) {
    uint32_t value = 0;
    for (int shift = 0; shift < 35; shift += 7) {
        if (r->at == r->end || (shift == 28 && *r->at > 15)) break;
        value |= (uint32_t)(*r->at & 127) << shift;
        if (*r->at++ < 128) return value;
    }
    r->bad = 1;
    return 0;
}

static int64_t signed_number(struct reader *r) {
    uint32_t value = number(r);
    return value & 1 ? -(int64_t)(value >> 1) - 1 : (int64_t)(value >> 1);
}

static uint16_t first(const uint16_t *t, const uint16_t *at, unsigned k) {
    return at[k] < at[k + 1] ? t[at[k]] : 0;
}

/* One bit a tensor: 1 is read later, 2 is freed here. Adds to the list (from its end) what is freed, descending. */
static int frees_after(const struct problem *p, const struct memory *m, const struct step *s, size_t *low) {
    uint16_t one = s->target;
    const uint16_t *made = &one, *read = &one;
    size_t n_made = s->action == PAGE_IN, n_read = s->action == PAGE_OUT;
    if (s->action == COMPUTE) {
        made = p->write + p->write_at[one], n_made = (size_t)(p->write_at[one + 1] - p->write_at[one]);
        read = p->read + p->read_at[one], n_read = (size_t)(p->read_at[one + 1] - p->read_at[one]);
    }
    for (size_t i = n_made, j = n_read; i || j;) { /* both ascend: merge from the end */
        uint16_t t = !j || (i && made[i - 1] >= read[j - 1]) ? made[i - 1] : read[j - 1];
        if (i && made[i - 1] == t) i--;
        if (j && read[j - 1] == t) j--;
        if (m->mark[t]) continue;
        if (!*low) return 0;
        m->freed[--*low] = t;
    }
    for (size_t i = 0; i < n_made; i++) m->mark[made[i]] = 0;
    for (size_t i = 0; i < n_read; i++) m->mark[read[i]] = 1;
    return 1;
}

/* Calls `emit` for every instruction in order. 0: done; 1: damaged; 2: another version or problem; 3: nonsense, or
   too little memory. Nothing is emitted before the checksum, the fingerprint and every number have been checked. */
int decode_plan(const struct problem *p, const struct memory *m, const uint8_t *data, size_t size,
                void (*emit)(enum action, uint16_t)) {
    if (size < 9) return 1;
    const uint8_t *sum = data + size - 4;
    uint32_t crc = sum[0] | (uint32_t)sum[1] << 8 | (uint32_t)sum[2] << 16 | (uint32_t)sum[3] << 24;
    if (crc32_of(data, size - 4) != crc) return 1;
    if (data[0] != 1) return 2;
    for (int k = 0; k < 4; k++)
        if (data[1 + k] != p->fingerprint[k]) return 2;

    struct reader r = {data + 5, sum, 0};
    size_t n = 0;
    unsigned ahead = 0, recomputed = 0;
    for (uint32_t left = number(&r); left && !r.bad; left--) {
        uint32_t word = number(&r), gap = word >> 2, kind = word & 3;
        if (r.bad || kind == FREE || gap > p->operators - ahead || n + gap >= m->events) return 3;
        while (gap--) m->event[n++] = (struct step){COMPUTE, (uint16_t)ahead++};
        int64_t target = signed_number(&r);
        if (kind == COMPUTE) target += recomputed;
        else if (kind == PAGE_OUT) target += ahead ? first(p->write, p->write_at, ahead - 1) : 0;
        else target += ahead < p->operators ? first(p->read, p->read_at, ahead) : 0;
        if (r.bad || target < 0 || target >= (kind == COMPUTE ? p->operators : p->tensors)) return 3;
        if (kind == COMPUTE) recomputed = (unsigned)target;
        m->event[n++] = (struct step){(uint8_t)kind, (uint16_t)target};
    }
    if (r.bad || n + p->operators - ahead > m->events) return 3;
    while (ahead < p->operators) m->event[n++] = (struct step){COMPUTE, (uint16_t)ahead++};

    /* What is freed by default: freed_at[k] .. freed_at[k + 1] before the first event (k = 0) or after event k - 1. */
    size_t low = m->frees;
    for (size_t t = 0; t < p->tensors; t++) m->mark[t] = 0;
    m->freed_at[n + 1] = low;
    for (size_t k = n; k; k--) {
        if (!frees_after(p, m, &m->event[k - 1], &low)) return 3;
        m->freed_at[k] = low;
    }
    for (size_t k = p->inputs; k; k--)
        if (!m->mark[p->input[k - 1]]) {
            if (!low) return 3;
            m->freed[--low] = p->input[k - 1];
        }
    m->freed_at[0] = low;

    /* Exceptions twice: first to check them, then to emit. */
    for (int pass = 0; pass < 2; pass++) {
        struct reader e = r;
        size_t place = 0, next = 0;
        for (uint32_t left = number(&e); !e.bad; left--) {
            if (left) place += number(&e);
            else place = n + 1;
            if (e.bad || (left && (place > n || place < next))) return 3;
            for (; next < place && pass; next++) {
                if (next) emit((enum action)m->event[next - 1].action, m->event[next - 1].target);
                for (size_t k = m->freed_at[next]; k < m->freed_at[next + 1]; k++) emit(FREE, m->freed[k]);
            }
            if (!left) break;
            if (pass && place) emit((enum action)m->event[place - 1].action, m->event[place - 1].target);
            int64_t t = 0;
            for (uint32_t count = number(&e); count && !e.bad; count--) {
                t += signed_number(&e);
                if (e.bad || t < 0 || t >= p->tensors) return 3;
                if (pass) emit(FREE, (uint16_t)t);
            }
            next = place + 1;
        }
        if (e.bad || e.at != e.end) return 3;
    }
    return 0;
}
