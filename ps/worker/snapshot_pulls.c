#include "ps/worker/snapshot_pulls.h"

#include <stdlib.h>
#include <string.h>

#include "ps/timing.h"
#include "shared/core/error.h"

struct collection {
    struct collection *next;  // younger
    struct snapshot *snapshot;
    bool begun;
    uint64_t seq;
    int64_t version, least, most;
    int missing;      // keys
    bool *answered;   // (keys)
    uint32_t *again;  // (keys) number of the last request for an answer that is lost
    uint32_t asked;   // numbers given out
    int repeats;
    double asked_s;
};

struct snapshot_pulls {
    struct snapshot_pulls_options o;
    struct collection *first;  // the oldest; the others wait for it
    struct snapshot *last;     // that began; NULL: none has, or nothing more is wanted
    bool ended;
    uint64_t seq;
};

struct snapshot_pulls *snapshot_pulls_create(const struct snapshot_pulls_options *o) {
    struct snapshot_pulls *p = xcalloc(1, sizeof *p);
    p->o = *o;
    return p;
}

static void ask_key(const struct snapshot_pulls *p, const struct collection *c, int key, uint32_t flags) {
    struct wire_header h = {.kind = WIRE_SNAPSHOT,
                            .key = key,
                            .version = c->version,
                            .seq = c->seq,
                            .ask = c->asked,
                            .flags = flags};
    port_tell(&p->o.port, p->o.map->parts[key].shard, &h);
}

// As of a pull: the question is a header, and the weights are sent again when they are known to be lost.
static void ask(const struct snapshot_pulls *p, struct collection *c, uint32_t flags, double now) {
    c->asked_s = now;
    c->asked++;
    for (int key = 0; key < p->o.map->count; key++)
        if (!c->answered[key]) ask_key(p, c, key, flags);
}

// Where steps commit all keys are asked for at once, before this worker pushes anything to the next update.
static void begin_next(struct snapshot_pulls *p, double now) {
    struct collection *c = p->first;
    if (!c || c->begun || !snapshot_may_begin(c->snapshot)) return;
    c->begun = true;
    p->last = c->snapshot;
    ask(p, c, 0, now);
}

void snapshot_pulls_open(struct snapshot_pulls *p, int64_t version, struct snapshot *s, double now) {
    struct collection *c = xcalloc(1, sizeof *c), **at = &p->first;
    while (*at) at = &(*at)->next;
    *c = (struct collection){.snapshot = s,
                             .seq = ++p->seq,
                             .version = version,
                             .least = INT64_MAX,
                             .missing = p->o.map->count,
                             .answered = xcalloc((unsigned long)p->o.map->count, sizeof(bool)),
                             .again = xcalloc((unsigned long)p->o.map->count, sizeof(uint32_t))};
    *at = c;
    if (p->ended) snapshot_pulls_end(p);
    begin_next(p, now);
}

bool snapshot_pulls_busy(const struct snapshot_pulls *p) {
    return p->first || (p->last && !snapshot_may_begin(p->last));
}

static void forget(struct snapshot_pulls *p, struct collection *c) {
    struct collection **at = &p->first;
    while (*at != c) at = &(*at)->next;
    *at = c->next;
    free(c->answered);
    free(c->again);
    free(c);
}

void snapshot_pulls_answer(struct snapshot_pulls *p, const struct wire_header *h,
                           const struct ps_frame *frame, double now) {
    if (h->key >= p->o.map->count) return;
    const struct partition *part = &p->o.map->parts[h->key];
    size_t bytes = (size_t)(part->end - part->begin) * dtype_size(p->o.dtype);
    struct collection *c = p->first;
    while (c && c->seq != h->seq) c = c->next;
    if (c && h->kind == WIRE_SNAPSHOT_SENT && !c->answered[h->key] && h->ask > c->again[h->key]) {
        c->again[h->key] = ++c->asked;
        ask_key(p, c, h->key, WIRE_AGAIN | WIRE_MISSING);
    }
    if (!c || c->answered[h->key] || !frame || frame->bytes != bytes) return;
    memcpy(snapshot_room(c->snapshot, part->unit, part->begin), frame->data, bytes);
    c->answered[h->key] = true;
    c->asked_s = now;  // answers are coming
    c->repeats = 0;
    if (h->version < c->least) c->least = h->version;
    if (h->version > c->most) c->most = h->version;
    if (--c->missing > 0) return;
    struct collection whole = *c;
    forget(p, c);
    snapshot_collected(whole.snapshot, whole.least, whole.most);
    begin_next(p, now);
}

void snapshot_pulls_tick(struct snapshot_pulls *p, double now) {
    struct collection *c = p->first;
    begin_next(p, now);
    if (c && c->begun)
        if (now - c->asked_s > rto_backoff(PEERS_S, c->repeats, p->o.repeat_most_s)) {
            c->repeats++;
            ask(p, c, WIRE_AGAIN, now);
        }
}

void snapshot_pulls_end(struct snapshot_pulls *p) {
    while (p->first) forget(p, p->first);
    p->last = NULL;
    p->ended = true;
}

void snapshot_pulls_destroy(struct snapshot_pulls **at) {
    if (!*at) return;
    snapshot_pulls_end(*at);
    free(*at);
    *at = NULL;
}
