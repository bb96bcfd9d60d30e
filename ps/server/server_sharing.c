// The memory that a server shares with workers: its own segment and theirs. In its own segment it publishes weights
// that workers read in place. The workers' segments hold gradients and, for some workers, the weights that the server
// writes.
//
//     worker                                  shard
//     ATTACH seq 1, the worker's segment -->  opens it (once for all shards of the server)
//                                       <--   ATTACHED seq 1: the server's own segment, or HELD: why nothing is shared
//     ATTACH seq 2, "" (it cannot, after all) --> nothing is shared: frames travel      <-- ATTACHED seq 2
//
// Threads     server_sharing_answer: any shard's; all other functions: the server's main thread, while no shard runs.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ps/net/medium.h"
#include "ps/server/server_memory.h"
#include "ps/server/server_threads.h"
#include "shared/core/error.h"

int server_sharing_create(struct server_sharing *s, const struct config *c, const struct shard_map *m,
                          int rank) {
    size_t bytes = server_segment_bytes(c, m, rank);
    *s = (struct server_sharing){
        .shares = ps_shares_any(c), .own.fd = -1, .count = c->workers, .threads = m->threads};
    s->workers = xcalloc((unsigned long)c->workers, sizeof *s->workers);
    for (int w = 0; w < s->count; w++) {
        s->workers[w].segment.fd = -1;
        s->workers[w].met = xcalloc((unsigned long)m->threads, sizeof(uint32_t));
    }
    pthread_mutex_init(&s->lock, NULL);
    return bytes ? segment_create(&s->own, bytes) : 0;
}

void server_sharing_destroy(struct server_sharing *s) {
    if (!s->workers) return;
    for (int w = 0; w < s->count; w++) {
        struct worker_segment *x = &s->workers[w];
        segment_close(&x->segment);
        for (int i = 0; i < x->olds; i++) segment_close(&x->old[i].segment);
        free(x->old);
        free(x->met);
    }
    segment_close(&s->own);
    free(s->workers);
    pthread_mutex_destroy(&s->lock);
    *s = (struct server_sharing){.own.fd = -1};
}

static void close_unknown(const struct server_sharing *s, struct worker_segment *w) {
    uint32_t least = w->process_no;
    int left = 0;
    for (int t = 0; t < s->threads; t++) least = w->met[t] < least ? w->met[t] : least;
    for (int i = 0; i < w->olds; i++)
        if (w->old[i].process_no < least)
            segment_close(&w->old[i].segment);
        else
            w->old[left++] = w->old[i];
    w->olds = left;
}

// A worker's segment is never unmapped while shards use it: a process has only one.
static int reach(struct server_sharing *s, int thread, const struct wire_header *h,
                 struct server_segment *out, char why[SEGMENT_WHY_MAX]) {
    struct worker_segment *w = &s->workers[h->rank];
    const char *name = h->text;
    int rc = 0;
    pthread_mutex_lock(&s->lock);
    // Another process has the worker's rank. Shards that do not know it yet still use the old segment.
    if (h->process_no > w->process_no) {
        w->old = xrealloc(w->old, (unsigned long)(w->olds + 1) * sizeof *w->old);
        w->old[w->olds++] = (struct old_segment){w->segment, w->process_no};
        w->segment = (struct segment){.fd = -1};
        w->name[0] = 0;
        w->process_no = h->process_no;
    }
    if (!w->name[0] && !(rc = segment_open(&w->segment, name, SEGMENT_WRITE, why)))
        snprintf(w->name, sizeof w->name, "%.*s", SEGMENT_NAME_MAX - 1, name);
    if (!rc && strcmp(w->name, name) != 0) {
        snprintf(why, SEGMENT_WHY_MAX, "the worker has shared other memory before");
        rc = -1;
    }
    if (!rc) *out = (struct server_segment){w->segment.base, w->segment.bytes};
    if (!rc) w->met[thread] = w->process_no;
    close_unknown(s, w);
    pthread_mutex_unlock(&s->lock);
    return rc;
}

void server_sharing_answer(struct server_sharing *s, int thread, const struct wire_header *h,
                           struct server_segment *out, struct wire_header *answer) {
    char why[SEGMENT_WHY_MAX] = "the server was given --medium tcp";
    *answer = (struct wire_header){.kind = WIRE_ATTACHED, .seq = h->seq};
    *out = (struct server_segment){0};
    if (!h->text[0]) return;
    if (!s->shares || reach(s, thread, h, out, why) != 0) {
        answer->flags = WIRE_NOT_SHARED;
        snprintf(answer->text, sizeof answer->text, "%s", why);
    } else if (s->own.base) {
        segment_name(&s->own, answer->text);
    }
}
