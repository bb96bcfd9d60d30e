// Makes a row's plan: its configuration, its layout and its memory.
#include "ps/bench/bench_plan.h"

#include <stdio.h>
#include <stdlib.h>

#include "shared/core/error.h"

// Bytes of a step: more than caches hold. Small payloads make smaller steps, of KEYS_MOST payloads.
#define STREAM_BYTES ((size_t)32 << 20)
#define KEYS_MOST    256  // about the number of keys of gpt2-124m
#define KEYS_LEAST   2
// Long, so that no process on a loaded machine counts as lost. The launcher notices a process that dies at once.
#define DEADLINE_MS   "240000"
#define PROCESS_BYTES (16.0 * 1024 * 1024)

int bench_keys(const struct bench_plan *p) {
    int shards = p->servers * p->threads;
    if (p->kind == BENCH_LATENCY) return shards;
    size_t wanted = STREAM_BYTES / p->bytes;
    int keys = wanted > KEYS_MOST ? KEYS_MOST : wanted < KEYS_LEAST ? KEYS_LEAST : (int)wanted;
    return (keys + shards - 1) / shards * shards;
}

size_t bench_partition(const struct bench_plan *p) {
    return p->bytes < p->partition ? p->bytes : p->partition;
}

int64_t bench_elements(const struct bench_plan *p) { return (int64_t)(p->bytes / dtype_size(p->dtype)); }

struct layout *bench_layout(const struct bench_plan *p) {
    struct layout *l = xcalloc(1, sizeof *l);
    int64_t n = bench_elements(p);
    l->count = bench_keys(p);
    l->units = xcalloc((unsigned long)l->count, sizeof *l->units);
    l->world = p->workers;
    l->params = l->padded = n * l->count;
    for (int i = 0; i < l->count; i++) {
        struct unit *u = &l->units[i];
        *u = (struct unit){.count = 1, .n = n, .n_pad = n};
        u->tensors[0] =
            (struct tensor){.shape = {n, 1}, .dims = 1, .numel = n, .decay = true, .logical_start = i * n};
        snprintf(u->name, sizeof u->name, "payload.%d", i);
        snprintf(u->tensors[0].name, sizeof u->tensors[0].name, "payload.%d", i);
    }
    return l;
}

struct config *bench_config(const struct topology_table *t, const struct bench_plan *p) {
    char workers[16], servers[16], threads[16], bytes[32];
    snprintf(workers, sizeof workers, "%d", p->workers);
    snprintf(servers, sizeof servers, "%d", p->servers);
    snprintf(threads, sizeof threads, "%d", p->threads);
    snprintf(bytes, sizeof bytes, "%zu", bench_partition(p));
    const struct config_override set[] = {
        {"topology", "ps:sync", NULL},
        {"workers", workers, NULL},
        {"dtype", dtype_name(p->dtype), NULL},
        {"device", "cpu", NULL},
        {"threads", "1", NULL},
        {"medium", p->medium == BENCH_SHM ? "shm" : "tcp", NULL},
        {"gradient_clipping", p->kind == BENCH_STREAM ? "1" : "0", NULL},
        {"parameter_server.servers", servers, NULL},
        {"parameter_server.threads", threads, NULL},
        {"parameter_server.partition_bytes", bytes, NULL},
        {"parameter_server.deadline_ms", DEADLINE_MS, NULL},
    };
    struct config *c = config_load(t, NULL, set, sizeof set / sizeof *set);
    if (c) c->ps.whole_units = true;
    return c;
}

double bench_memory(const struct bench_plan *row, int media) {
    double total = 0;
    for (int kind = 0; kind < BENCH_KINDS; kind++) {
        struct bench_plan p = *row;
        p.kind = (enum bench_kind)kind;
        double payload = (double)bench_keys(&p) * (double)p.bytes;
        double elements = (double)bench_keys(&p) * (double)bench_elements(&p);
        double server = elements * 4 * sizeof(float) + (p.dtype == DT_F32 ? 0 : payload);
        // 3 payloads per worker: weights, gradients, and data in flight.
        double job = server + 3 * payload * p.workers;
        total += media * (job + PROCESS_BYTES * (1 + p.servers + p.workers));
    }
    return total;
}

void bench_plan_text(const struct bench_plan *p, char text[BENCH_PLAN_TEXT]) {
    snprintf(text, BENCH_PLAN_TEXT, "%d,%d,%d,%zu,%d,%d,%d,%zu", (int)p->kind, (int)p->medium, (int)p->dtype,
             p->bytes, p->servers, p->workers, p->threads, p->partition);
}

int bench_plan_read(struct bench_plan *p, const char *text) {
    int kind, medium, dtype, used = 0;
    *p = (struct bench_plan){.kind = BENCH_STREAM};
    if (!text || sscanf(text, "%d,%d,%d,%zu,%d,%d,%d,%zu%n", &kind, &medium, &dtype, &p->bytes, &p->servers,
                        &p->workers, &p->threads, &p->partition, &used) != 8)
        return fail("bench ps --as is for processes that the bench starts itself");
    bool good = !text[used] && kind >= 0 && kind < BENCH_KINDS && medium >= 0 && medium < BENCH_MEDIA &&
                (dtype == DT_F32 || dtype == DT_BF16) && p->bytes && p->bytes % BENCH_BYTES_STEP == 0 &&
                p->servers > 0 && p->workers > 0 && p->threads > 0 && p->partition &&
                p->partition % BENCH_BYTES_STEP == 0;
    p->kind = (enum bench_kind)kind;
    p->medium = (enum bench_medium)medium;
    p->dtype = (enum dtype)dtype;
    return good ? 0 : fail("bench ps --plan %s: no plan of the bench's", text);
}
