// Plans made from numbers: how a model is cut into keys that are assigned to shards, the members of a step and their
// samples, the bytes of a collective. The first byte says which.
#include <stdlib.h>
#include <string.h>

#include "decentral/collective/collective_plan.h"
#include "ps/agree/step_set.h"
#include "ps/job/shard_map.h"
#include "shared/core/error.h"
#include "tests/fuzz/fuzz.h"

#define PARTS_MAX 20000

static struct layout *any_layout(struct fuzz_bytes *in, int workers) {
    struct layout *l = xcalloc(1, sizeof *l);
    l->count = 1 + (int)fuzz_below(in, 5);
    l->units = xcalloc((unsigned long)l->count, sizeof *l->units);
    for (int u = 0; u < l->count; u++) {
        l->units[u].count = 1 + (int)fuzz_below(in, 3);
        for (int t = 0; t < l->units[u].count; t++)
            l->units[u].tensors[t] = (struct tensor){
                .shape = {1 + (int64_t)fuzz_word(in, 2), 1 + (int64_t)fuzz_below(in, 64)}, .dims = 2};
    }
    layout_finish(l, workers);
    return l;
}

static void check_map(const struct shard_map *m, const struct layout *l) {
    int64_t *elements = xcalloc((unsigned long)m->shards, sizeof *elements), at = 0, total = 0;
    FUZZ_CHECK(m->first[0] == 0 && m->first[l->count] == m->count, "keys without a unit");
    for (int k = 0; k < m->count; k++) {
        const struct partition *p = &m->parts[k];
        if (k == m->first[p->unit]) at = 0;
        FUZZ_CHECK(p->begin == at && p->end > p->begin && p->begin % SUMSQ_BLOCK == 0,
                   "key %d: a hole or an overlap", k);
        FUZZ_CHECK(p->shard >= 0 && p->shard < m->shards, "key %d: shard %d", k, p->shard);
        at = p->end;
        if (k + 1 == m->first[p->unit + 1])
            FUZZ_CHECK(at == l->units[p->unit].n_pad, "unit %d is not covered", p->unit);
        elements[p->shard] += p->end - p->begin;
    }
    for (int g = 0; g < m->shards; g++) {
        FUZZ_CHECK(elements[g] == m->shard_elements[g], "shard %d: another sum", g);
        total += elements[g];
    }
    FUZZ_CHECK(total == l->padded, "%lld elements of %lld", (long long)total, (long long)l->padded);
    free(elements);
}

static void cut(struct fuzz_bytes *in) {
    struct config c = {.workers = 1 + (int)fuzz_below(in, 8), .dtype = fuzz_below(in, 2) ? DT_BF16 : DT_F32};
    c.ps = (struct ps_config){.servers = (int)fuzz_number(in),
                              .threads = (int)fuzz_number(in),
                              .partition_bytes = fuzz_number(in),
                              .whole_units = fuzz_below(in, 2)};
    struct layout *l = any_layout(in, c.workers);
    bool few = c.ps.partition_bytes >= 4 * (l->padded / PARTS_MAX);
    error_clear();
    struct shard_map *m = few ? shard_map_of(&c, l) : NULL;
    FUZZ_CHECK(m || !few || error_last()[0], "refused in silence");
    if (m) {
        size_t *place = xcalloc((unsigned long)m->count, sizeof *place);
        int64_t served = 0;
        check_map(m, l);
        shard_map_offsets(m, dtype_size(c.dtype), SHARD_PAGE, place);
        for (int k = 0; k < m->count; k++)
            FUZZ_CHECK(place[k] % SHARD_PAGE == 0 && place[k], "key %d has no page", k);
        for (int r = 0; r < m->servers; r++) served += shard_map_server_elements(m, r);
        FUZZ_CHECK(served == l->padded, "servers have %lld elements", (long long)served);
        free(place);
    }
    shard_map_destroy(&m);
    layout_destroy(&l);
}

// An opening passes the wire as it is.
static void pass(const struct step_opening *d) {
    struct wire_header h = {.kind = WIRE_JOINED, .step = d->state.step}, heard;
    struct step_opening again;
    uint8_t bytes[WIRE_HEADER_MAX];
    opening_write(d, &h);
    size_t n = wire_encode(&h, bytes);
    FUZZ_CHECK(n && wire_decode(bytes, n, 0, &heard) == 0 && opening_read(&heard, &again) == 0,
               "a deal is lost on its way");
    FUZZ_CHECK(again.members == d->members && again.state.handed_out == d->state.handed_out &&
                   again.state.samples == d->state.samples && again.state.unapplied == d->state.unapplied,
               "a deal is another on its way");
}

static void opening(struct fuzz_bytes *in) {
    struct step_set_options o = {.workers = 1 + (int)fuzz_below(in, ELASTIC_WORKERS_MAX),
                                 .shards = 1 + (int)fuzz_below(in, 3)};
    o.min = 1 + (int)fuzz_below(in, (uint64_t)o.workers);
    o.own = 1 + (int64_t)fuzz_below(in, 64);
    struct step_set *s = step_set_create(&o);
    while (in->left) {
        int w = (int)fuzz_below(in, (uint64_t)o.workers);
        uint64_t members = step_set_members(s);
        switch (fuzz_below(in, 6)) {
            case 0:
                step_set_reported(s, w);
                break;
            case 1:
                step_set_arrived(s, (int)fuzz_below(in, (uint64_t)o.shards),
                                 fuzz_word(in, 8) & elastic_all(o.workers));
                break;
            case 2:
                if (step_set_live(s) & elastic_bit(w) && step_set_can_lose(s, w)) step_set_lost(s, w);
                break;
            case 3:
                if (!(step_set_live(s) & elastic_bit(w)) && !(members & elastic_bit(w))) step_set_join(s, w);
                break;
            default:
                for (int i = 0; i < o.workers; i++) step_set_reported(s, i);
                for (int g = 0; g < o.shards; g++) step_set_arrived(s, g, elastic_all(o.workers));
        }
        FUZZ_CHECK(step_set_live(s) & 1, "worker 0 is lost");
        step_set_fix(s, 0);
        uint64_t fixed = step_set_fixed(s);
        if (!fixed) continue;
        FUZZ_CHECK(!(fixed & ~members), "who is no member counts");
        const struct train_state before = *step_set_state(s);
        step_set_close(s, fuzz_below(in, 2), fuzz_below(in, 2));
        const struct train_state *now = step_set_state(s);
        FUZZ_CHECK(now->step == before.step + 1 &&
                       now->handed_out == before.handed_out + o.own * elastic_count(members),
                   "step %lld: %lld samples dealt, then %lld", (long long)before.step,
                   (long long)before.handed_out, (long long)now->handed_out);
        FUZZ_CHECK(now->unapplied - before.unapplied + now->samples - before.samples <=
                       now->handed_out - before.handed_out,
                   "step %lld: the schedule counts more samples than were dealt", (long long)before.step);
        pass(&(struct step_opening){
            .members = step_set_members(s), .contributors = elastic_count(fixed), .state = *now});
    }
    step_set_destroy(&s);
}

// All that one sends another receives.
static void collect(struct fuzz_bytes *in) {
    int size = 1 + (int)fuzz_below(in, 9);
    char *here = NULL;
    struct collective_call c = {.primitive = (enum collective_primitive)fuzz_below(in, COLLECTIVE_PRIMITIVES),
                                .count = (size_t)fuzz_word(in, 3),
                                .dt = fuzz_below(in, 2) ? DT_BF16 : DT_F32,
                                .send = &here,
                                .recv = &here};
    size_t sent = 0, received = 0;
    c.root = (int)fuzz_below(in, (uint64_t)size);
    if (c.primitive == COLLECTIVE_SEND || c.primitive == COLLECTIVE_RECV) return;
    for (int rank = 0; rank < size; rank++) {
        const struct collective_plan p = collective_plan_of(&c, rank, size);
        const struct collective_volume v = collective_volume(&p);
        sent += v.sent;
        received += v.received;
    }
    FUZZ_CHECK(sent == received, "%s: %zu bytes are sent, %zu received", collective_name(c.primitive), sent,
               received);
}

FUZZ_TARGET(numbers) {
    struct fuzz_bytes in = {data, size};
    switch (fuzz_below(&in, 3)) {
        case 0:
            cut(&in);
            break;
        case 1:
            opening(&in);
            break;
        default:
            collect(&in);
    }
}
