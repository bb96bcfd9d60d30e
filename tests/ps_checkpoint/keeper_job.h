// A job's servers without their cores, for tests of what is kept of their keys: memory with known values, and what is known
// of each key.
#ifndef STARRING_TESTS_PS_CHECKPOINT_KEEPER_JOB_H
#define STARRING_TESTS_PS_CHECKPOINT_KEEPER_JOB_H

#include <stdlib.h>
#include <unistd.h>

#include "ps/job/batches.h"
#include "ps/server/server_memory.h"
#include "tests/ps/test_ps_toy.h"

#define LIFE     77
#define KEYS     64
#define WORDS(n) (size_t) batches_words(&(struct config){.workers = n})

struct job {
    struct config c;
    struct layout *l;
    struct shard_map *map;
    struct server_buffers buf[KEYS], copies[KEYS];
    int64_t pushed[KEYS][4], batches[KEYS][32];
    char dir[64];
};

static inline float value_of(int unit, int64_t i, int kind, int64_t step) {
    return toy_noise((uint64_t)(100 * unit + 10 * kind + (int)step), (uint64_t)i);
}

// Gaps and pads are zero.
static inline void fill(struct job *j, int key, int64_t step) {
    const struct partition *p = &j->map->parts[key];
    const struct unit *u = &j->l->units[p->unit];
    for (int kind = 0; kind < 3; kind++) {
        float *out = kind ? j->buf[key].state[kind - 1] : j->buf[key].master;
        memset(out, 0, (size_t)(p->end - p->begin) * sizeof *out);
        for (int t = 0; t < u->count; t++)
            for (int64_t i = u->tensors[t].offset; i < u->tensors[t].offset + u->tensors[t].numel; i++)
                if (i >= p->begin && i < p->end) out[i - p->begin] = value_of(p->unit, i, kind, step);
    }
}

static inline void job_init(struct job *j, const char *consistency, int workers, int servers, int threads) {
    const struct toy_case t = {.dtype = DT_BF16,
                               .consistency = consistency,
                               .workers = workers,
                               .servers = servers,
                               .threads = threads};
    *j = (struct job){.c = toy_config(&t), .l = toy_layout(workers, 80)};
    for (int u = 0; u < j->l->count; u++)
        for (int i = 0; i < j->l->units[u].count; i++)
            snprintf(j->l->units[u].tensors[i].name, TENSOR_NAME_MAX, "u%d.t%d", u, i);
    j->c.train_batch = 12;
    j->c.micro_batch = 12 / workers;
    j->map = shard_map_of(&j->c, j->l);
    for (int key = 0; key < KEYS; key++) batches_clear(j->batches[key], (int)WORDS(workers));
    assert_true(j->map->count <= KEYS);
    for (int key = 0; key < j->map->count; key++) {
        unsigned long n = (unsigned long)(j->map->parts[key].end - j->map->parts[key].begin);
        j->buf[key] = (struct server_buffers){
            xcalloc(n, 4), {xcalloc(n, 4), xcalloc(n, 4)}, NULL, NULL, NULL, NULL, NULL, NULL};
        j->copies[key] = (struct server_buffers){
            xcalloc(n, 4), {xcalloc(n, 4), xcalloc(n, 4)}, NULL, NULL, NULL, NULL, NULL, NULL};
    }
    snprintf(j->dir, sizeof j->dir, "/tmp/starring-keeper-XXXXXX");
    assert_non_null(mkdtemp(j->dir));
}

static inline void job_free(struct job *j) {
    char *command = xasprintf("rm -rf %s", j->dir);
    assert_int_equal(system(command), 0);
    free(command);
    for (int key = 0; key < j->map->count; key++)
        for (int i = 0; i < 2; i++) {
            const struct server_buffers *b = i ? &j->copies[key] : &j->buf[key];
            free(b->master), free(b->state[0]), free(b->state[1]);
        }
    shard_map_destroy(&j->map);
    layout_destroy(&j->l);
}

#endif
