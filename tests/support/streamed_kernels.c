/* What poetopt.testing.streamed runs operators with: plainly, and by each way to stream them, on a storage that counts. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PO_BLOCK_BYTES @BLOCK@u
#if defined(__clang__)
#define PO_ALONE static __attribute__((noinline))
#else
#define PO_ALONE static __attribute__((noipa))
#endif
#define PO_AT(base, offset) ((void *)((unsigned char *)(base) + (offset)))
#define PO_TRY(call)              \
    do {                          \
        const int po_code = call; \
        if (po_code != 0) {       \
            return po_code;       \
        }                         \
    } while (0)

enum { MOST = 40, POISON = 0x7B };

static unsigned char *po_storage, *po_known, *po_writes;
static size_t po_size;
static uint32_t po_read_bytes, po_written_bytes, po_reads, po_written;

static int po_read(uint32_t block, void *address, uint32_t bytes)
{
    const size_t at = (size_t)block * PO_BLOCK_BYTES;
    uint32_t k;
    if (bytes == 0 || at + bytes > po_size) {
        return 11;
    }
    for (k = 0; k < bytes; ++k) {
        if (po_known[at + k] == 0) {
            return 12;
        }
    }
    memcpy(address, po_storage + at, bytes);
    po_read_bytes += bytes;
    ++po_reads;
    return 0;
}

static int po_write(uint32_t block, const void *address, uint32_t bytes)
{
    const size_t at = (size_t)block * PO_BLOCK_BYTES;
    uint32_t k;
    if (bytes == 0 || at + bytes > po_size) {
        return 13;
    }
    memcpy(po_storage + at, address, bytes);
    for (k = 0; k < bytes; ++k) {
        po_known[at + k] = 1;
        if (++po_writes[at + k] > 1) {
            return 14;
        }
    }
    po_written_bytes += bytes;
    ++po_written;
    return 0;
}

#include "po_stream.h"
@INCLUDES@

typedef int (*po_run)(void **t, void *work, const uint32_t *b);

typedef struct {
    po_run run;
    uint32_t mask;       /* which tensors are streamed */
    uint32_t order[MOST]; /* these, in the order of their blocks' parameters */
    uint32_t work, read_bytes, written_bytes, reads, writes;
} po_way;

typedef struct {
    int count, inputs;
    const uint32_t *sizes;
    const uint32_t *rows; /* of tables by rows: on the storage the last row comes first; 0 for others */
    po_run plain;
    uint32_t work;
    int ways;
    const po_way *way;
} po_trial;

@FUNCTIONS@

static const po_trial po_trials[] = {
    @TRIALS@};

static void *po_new(size_t size, int byte)
{
    void *made = malloc(size == 0 ? 1 : size);
    if (made == NULL) {
        exit(3);
    }
    memset(made, byte, size);
    return made;
}

/* Between a tensor and the storage, which has a table's rows the other way round. */
static void po_copy(unsigned char *to, const unsigned char *from, uint32_t size, uint32_t rows)
{
    const uint32_t count = rows == 0 ? 1 : rows, bytes = size / count;
    uint32_t k;
    for (k = 0; k < count; ++k) {
        memcpy(to + (count - 1u - k) * bytes, from + k * bytes, bytes);
    }
}

static void po_one(int number, const po_trial *trial, int w, void **given, void **plain)
{
    const po_way *way = &trial->way[w];
    void *t[MOST], *work = po_new(way->work, POISON);
    uint32_t place[MOST], blocks[MOST];
    uint32_t end = 1, streamed = 0;
    int k, code;
    for (k = 0; k < trial->count; ++k) {
        place[k] = end;
        end += (trial->sizes[k] + PO_BLOCK_BYTES - 1u) / PO_BLOCK_BYTES;
    }
    po_size = (size_t)end * PO_BLOCK_BYTES;
    po_storage = po_new(po_size, POISON);
    po_known = po_new(po_size, 0);
    po_writes = po_new(po_size, 0);
    for (k = 0; k < trial->count; ++k) {
        const size_t at = (size_t)place[k] * PO_BLOCK_BYTES;
        t[k] = NULL;
        if ((way->mask >> k & 1u) == 0) {
            t[k] = po_new(trial->sizes[k], POISON);
            if (k < trial->inputs) {
                memcpy(t[k], given[k], trial->sizes[k]);
            }
            continue;
        }
        ++streamed;
        if (k < trial->inputs) {
            po_copy(po_storage + at, given[k], trial->sizes[k], trial->rows[k]);
            memset(po_known + at, 1, (trial->sizes[k] + PO_BLOCK_BYTES - 1u) / PO_BLOCK_BYTES * PO_BLOCK_BYTES);
        }
    }
    for (k = 0; k < (int)streamed; ++k) {
        blocks[k] = place[way->order[k]];
    }
    po_read_bytes = po_written_bytes = po_reads = po_written = 0;
    printf("at %d %d\n", number, w);
    fflush(stdout);
    code = way->run(t, work, blocks);
    if (code != 0) {
        printf("%d %d a transfer is wrong: code %d\n", number, w, code);
    }
    if (po_read_bytes != way->read_bytes || po_written_bytes != way->written_bytes || po_reads != way->reads
        || po_written != way->writes) {
        printf("%d %d it reads %u B in %u and writes %u in %u, and should %u in %u, %u in %u\n", number, w,
               po_read_bytes, po_reads, po_written_bytes, po_written, way->read_bytes, way->reads, way->written_bytes,
               way->writes);
    }
    for (k = 0; k < trial->count; ++k) {
        unsigned char *stored = po_new(trial->sizes[k], POISON);
        const unsigned char *mine = t[k] != NULL ? t[k] : stored;
        po_copy(stored, po_storage + (size_t)place[k] * PO_BLOCK_BYTES, trial->sizes[k], trial->rows[k]);
        if (memcmp(mine, plain[k], trial->sizes[k]) != 0) {
            printf("%d %d tensor %d has other bits\n", number, w, k);
        }
        free(stored);
        free(t[k]);
    }
    free(work);
    free(po_storage);
    free(po_known);
    free(po_writes);
}

int main(void)
{
    FILE *in = fopen("inputs.bin", "rb");
    int number;
    if (in == NULL) {
        return 2;
    }
    for (number = 0; number < (int)(sizeof po_trials / sizeof *po_trials); ++number) {
        const po_trial *trial = &po_trials[number];
        void *given[MOST], *plain[MOST], *work = po_new(trial->work, POISON);
        const uint32_t none[1] = {0};
        int k, w;
        for (k = 0; k < trial->count; ++k) {
            given[k] = po_new(trial->sizes[k], POISON);
            plain[k] = po_new(trial->sizes[k], POISON);
            if (k < trial->inputs) {
                if (fread(given[k], 1, trial->sizes[k], in) != trial->sizes[k]) {
                    return 4;
                }
                memcpy(plain[k], given[k], trial->sizes[k]);
            }
        }
        if (trial->plain(plain, work, none) != 0) {
            return 5;
        }
        for (w = 0; w < trial->ways; ++w) {
            po_one(number, trial, w, given, plain);
        }
        for (k = 0; k < trial->count; ++k) {
            free(given[k]);
            free(plain[k]);
        }
        free(work);
    }
    return fclose(in);
}
