#include "ps/worker/snapshot_pulls.h"

#include <stdlib.h>
#include <string.h>

#include "shared/core/error.h"

struct collection {
    struct collection *next;  // the next collection in the queue
    struct snapshot *snapshot;
    bool begun;
    uint64_t seq;
    int64_t version, least, most;
    int64_t updates;  // the fewest updates that any key's weights contain
    int missing;      // number of keys without an answer
    bool *answered;   // (keys)
};

struct snapshot_pulls {
    struct snapshot_pulls_options o;
    struct collection *first;  // the oldest collection; later ones wait for it
    struct snapshot *last;     // the last snapshot that began; NULL: none, or snapshots have ended
    bool ended;
    uint64_t seq;
};

struct snapshot_pulls *snapshot_pulls_create(const struct snapshot_pulls_options *o) {
    struct snapshot_pulls *p = xcalloc(1, sizeof *p);
    p->o = *o;
    return p;
}

// Requests all keys together. In synchronous training this happens before the worker pushes for the next update, so all
// have one version.
static void begin_next(struct snapshot_pulls *p) {
    struct collection *c = p->first;
    if (!c || c->begun || !snapshot_can_begin(c->snapshot)) return;
    c->begun = true;
    p->last = c->snapshot;
    for (int key = 0; key < p->o.map->trained; key++) {
        const struct wire_header h = {
            .kind = WIRE_SNAPSHOT, .key = key, .version = c->version, .seq = c->seq};
        port_tell(&p->o.port, p->o.map->parts[key].shard, &h);
    }
}

void snapshot_pulls_open(struct snapshot_pulls *p, int64_t version, struct snapshot *s) {
    struct collection *c = xcalloc(1, sizeof *c), **at = &p->first;
    while (*at) at = &(*at)->next;
    *c = (struct collection){.snapshot = s,
                             .seq = ++p->seq,
                             .version = version,
                             .least = INT64_MAX,
                             .updates = INT64_MAX,
                             .missing = p->o.map->trained,
                             .answered = xcalloc((unsigned long)p->o.map->trained, sizeof(bool))};
    *at = c;
    if (p->ended) snapshot_pulls_end(p);
    begin_next(p);
}

bool snapshot_pulls_busy(const struct snapshot_pulls *p) {
    return p->first || (p->last && !snapshot_can_begin(p->last));
}

static void forget(struct snapshot_pulls *p, struct collection *c) {
    struct collection **at = &p->first;
    while (*at != c) at = &(*at)->next;
    *at = c->next;
    free(c->answered);
    free(c);
}

// The collection to which this answer belongs; NULL: none.
static struct collection *collection_of(const struct snapshot_pulls *p, const struct wire_header *h,
                                        const struct ps_frame *frame) {
    if (!frame || h->key >= p->o.map->trained) return NULL;
    const struct partition *part = &p->o.map->parts[h->key];
    struct collection *c = p->first;
    while (c && c->seq != h->seq) c = c->next;
    bool wanted = c && !c->answered[h->key] &&
                  frame->bytes == (size_t)(part->end - part->begin) * dtype_size(p->o.dtype);
    return wanted ? c : NULL;
}

void *snapshot_pulls_target(const struct snapshot_pulls *p, const struct wire_header *h,
                            const struct ps_frame *frame) {
    const struct collection *c = collection_of(p, h, frame);
    const struct partition *part = &p->o.map->parts[c ? h->key : 0];
    return c ? snapshot_address(c->snapshot, part->unit, part->begin) : NULL;
}

void snapshot_pulls_answer(struct snapshot_pulls *p, const struct wire_header *h,
                           const struct ps_frame *frame) {
    struct collection *c = collection_of(p, h, frame);
    if (!c) return;
    c->answered[h->key] = true;
    if (h->version < c->least) c->least = h->version;
    if (h->version > c->most) c->most = h->version;
    if (h->updates < c->updates) c->updates = h->updates;
    if (--c->missing > 0) return;
    struct collection whole = *c;
    forget(p, c);
    snapshot_collected(whole.snapshot, whole.least, whole.most, whole.updates);
    begin_next(p);
}

void snapshot_pulls_tick(struct snapshot_pulls *p) { begin_next(p); }

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
