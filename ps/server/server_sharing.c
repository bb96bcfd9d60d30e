#include "ps/server/server_sharing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ps/medium.h"
#include "shared/core/error.h"

int server_sharing_create(struct server_sharing *s, const struct config *c, const struct shard_map *m,
                          int rank) {
    size_t bytes = server_segment_bytes(c, m, rank);
    *s = (struct server_sharing){.shares = ps_shares(c), .own.fd = -1, .count = c->workers};
    s->workers = xcalloc((unsigned long)c->workers, sizeof *s->workers);
    for (int w = 0; w < s->count; w++) s->workers[w].segment.fd = -1;
    pthread_mutex_init(&s->lock, NULL);
    return bytes ? segment_create(&s->own, bytes) : 0;
}

void server_sharing_destroy(struct server_sharing *s) {
    if (!s->workers) return;
    for (int w = 0; w < s->count; w++) segment_close(&s->workers[w].segment);
    segment_close(&s->own);
    free(s->workers);
    pthread_mutex_destroy(&s->lock);
    *s = (struct server_sharing){.own.fd = -1};
}

// What shards use of a worker's segment is never unmapped under them: a worker has one for life.
static int reach(struct server_sharing *s, int worker, const char *name, struct server_segment *out,
                 char why[SEGMENT_WHY_MAX]) {
    struct worker_segment *w = &s->workers[worker];
    int rc = 0;
    pthread_mutex_lock(&s->lock);
    if (!w->name[0] && !(rc = segment_open(&w->segment, name, SEGMENT_WRITE, why)))
        snprintf(w->name, sizeof w->name, "%.*s", SEGMENT_NAME_MAX - 1, name);
    if (!rc && strcmp(w->name, name) != 0) {
        snprintf(why, SEGMENT_WHY_MAX, "the worker has shared other memory before");
        rc = -1;
    }
    if (!rc) *out = (struct server_segment){w->segment.base, w->segment.bytes};
    pthread_mutex_unlock(&s->lock);
    return rc;
}

void server_sharing_answer(struct server_sharing *s, const struct wire_header *h, struct server_segment *out,
                           struct wire_header *answer) {
    char why[SEGMENT_WHY_MAX] = "the server was given --medium tcp";
    *answer = (struct wire_header){.kind = WIRE_ATTACHED, .seq = h->seq};
    *out = (struct server_segment){0};
    if (!h->text[0]) return;
    if (!s->shares || reach(s, h->rank, h->text, out, why) != 0) {
        answer->flags = WIRE_HELD;
        snprintf(answer->text, sizeof answer->text, "%s", why);
    } else if (s->own.base) {
        segment_name(&s->own, answer->text);
    }
}
