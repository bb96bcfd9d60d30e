// The replica of a neighbour's keys (ps/server/replica.h) behind the link that knows the neighbours, and messages of any kind, size and order: of the primary, of
// its earlier process, of strangers; the scheduler's decisions between them. What is said twice changes nothing the second
// time, a stranger changes and hears nothing, a key makes one update at a time, of a sum that is here, and after an error all
// stays as it is.
#include <xxhash.h>

#include "ps/server/neighbours.h"
#include "tests/fuzz/star/star_case.h"
#include "tests/ps/test_ps_log.h"

#define PRIMARY   77
#define HOLDER    78
#define KEYS_MAX  64
#define STEPS_MAX 6  // of decisions

struct life {
    struct sim *s;  // lends layout and map
    struct log log;
    struct replica *r;
    struct neighbours neighbours;  // without sockets
    struct server_buffers *buf;
    struct fuzz_bytes in;
    bool kept[KEYS_MAX][STEPS_MAX];  // that a sum is here, as the replica has said
};

static int64_t elements(const struct life *x, int key) {
    return x->s->map->parts[key].end - x->s->map->parts[key].begin;
}

static uint64_t hash(const struct life *x) {
    uint64_t h = 0;
    for (int k = 0; k < x->s->map->count; k++) {
        size_t n = (size_t)elements(x, k);
        int64_t version = replica_version(x->r, k);
        const void *of[] = {x->buf[k].master, x->buf[k].state[0], x->buf[k].state[1]};
        for (int i = 0; i < 3; i++) h = XXH64(of[i], n * 4, h);
        h = XXH64(x->buf[k].acc, n * dtype_size(x->s->t.dtype), h);
        h = XXH64(&version, sizeof version, h);
    }
    return h;
}

static void create(struct life *x) {
    const struct shard_map *map = x->s->map;
    x->buf = xcalloc((unsigned long)map->count, sizeof *x->buf);
    for (int k = 0; k < map->count; k++) {
        unsigned long n = (unsigned long)elements(x, k);
        x->buf[k] = (struct server_buffers){xcalloc(n, 4), {xcalloc(n, 4), xcalloc(n, 4)},
                                            NULL,          xcalloc(n, dtype_size(x->s->t.dtype)),
                                            NULL,          NULL,
                                            NULL,          NULL};
    }
    const struct replica_options o = {.layout = x->s->l,
                                      .map = map,
                                      .shard = 0,
                                      .buffers = x->buf,
                                      .optimizer = x->s->c.optimizer,
                                      .dtype = x->s->t.dtype,
                                      .job = SIM_JOB,
                                      .port = {&x->log, log_send}};
    x->r = replica_create(&o);
    replica_set_primary(x->r, PRIMARY);
    x->neighbours = (struct neighbours){.replica = x->r,
                                        .primary_shard = 0,
                                        .holder_shard = map->threads,
                                        .threads = map->threads,
                                        .holder.incarnation = HOLDER};
}

static void destroy(struct life *x) {
    replica_destroy(&x->r);
    for (int k = 0; k < x->s->map->count; k++) {
        free(x->buf[k].master);
        free(x->buf[k].state[0]);
        free(x->buf[k].state[1]);
        free(x->buf[k].acc);
    }
    free(x->buf);
    sim_destroy(x->s);
}

// Passes the codec. Whether it did.
static bool say(struct life *x, struct wire_header h, size_t bytes, uint8_t fill) {
    uint8_t wire[WIRE_HEADER_MAX];
    size_t n = wire_encode(&h, wire);
    x->log.count = 0;
    if (!n || wire_decode(wire, n, bytes, &h) != 0) return false;
    struct ps_frame *f = bytes ? sim_frame(x->s, xcalloc(bytes, 1), bytes) : NULL;
    // Zeros and small numbers in any dtype.
    for (size_t i = 0; i < bytes; i += 2) ((uint8_t *)(uintptr_t)f->data)[i] = fill;
    const bool knows = replica_knows(x->r, &h), holder = h.role == PS_SHARD && h.rank == 1 && h.thread == 0;
    struct net_message m = {.header = h, .frame = f, .from = {.id = {1}, .bytes = 1}};
    x->neighbours.to_primary = (struct net_route){.bytes = 0};
    FUZZ_CHECK(neighbours_is_holder(&x->neighbours, &h) == (holder && h.incarnation == HOLDER),
               "rank %d thread %d passes for the holder", h.rank, h.thread);
    const bool is = neighbours_is_primary(&x->neighbours, &m);
    FUZZ_CHECK(is == knows && (x->neighbours.to_primary.bytes == 1) == knows,
               "a stranger's way is kept for the primary's");
    replica_message(x->r, &h, f);
    if (h.kind != WIRE_REPLICATE) return false;
    for (int i = 0; i < x->log.count; i++) {
        const struct wire_header *a = &x->log.sent[i].h;
        if (a->kind == WIRE_REPLICATE_ACK && !a->seq && a->step < STEPS_MAX) x->kept[a->key][a->step] = true;
    }
    return true;
}

static void message(struct life *x) {
    struct wire_header h = star_header(&x->in, x->s->map->count);
    uint8_t who = fuzz_u8(&x->in), how = fuzz_u8(&x->in);
    bool failed = replica_error(x->r)[0];
    int64_t before[KEYS_MAX];
    int keys = x->s->map->count;
    h.kind = how & 1 || h.kind == WIRE_SHARD_SUM ? WIRE_REPLICATE : h.kind;
    h.has_sum = false;
    h.seq = how & 2 ? h.seq : 0;
    h.role = who & 1 ? PS_WORKER : PS_SHARD;
    h.rank = who >> 1 & 1;
    h.thread = who >> 2 & 1;
    h.job = who & 8 ? SIM_JOB - 1 : SIM_JOB;
    h.incarnation = who & 16 ? (who & 32 ? HOLDER : PRIMARY - 1) : PRIMARY;
    h.place_bytes = 0;
    size_t n = (size_t)elements(x, h.key < keys ? h.key : 0), size = h.seq ? 4 : dtype_size(x->s->t.dtype);
    size_t bytes = how & 4 ? 0 : how & 8 ? fuzz_below(&x->in, 256) * 8 : n * size;
    uint64_t was = hash(x);
    for (int k = 0; k < keys; k++) before[k] = replica_version(x->r, k);
    if (!say(x, h, bytes, (uint8_t)(how >> 4))) return;
    bool knows = !(who & 31);
    FUZZ_CHECK(knows || (hash(x) == was && !x->log.count && failed == (replica_error(x->r)[0] != 0)),
               "a stranger's %s is heard", wire_kind_name(h.kind));
    FUZZ_CHECK(!failed || hash(x) == was, "a replica that has failed goes on");
    FUZZ_CHECK(x->log.count <= 1, "%d answers", x->log.count);
    for (int k = 0; k < keys; k++) {
        int64_t now = replica_version(x->r, k);
        FUZZ_CHECK(now == before[k] || (k == h.key && now == before[k] + 1),
                   "key %d goes from version %lld to %lld", k, (long long)before[k], (long long)now);
    }
    was = hash(x);
    failed = replica_error(x->r)[0];
    say(x, h, bytes, (uint8_t)(how >> 4 ^ 5));  // with other numbers even
    FUZZ_CHECK(hash(x) == was && failed == (replica_error(x->r)[0] != 0),
               "a repeated %s of step %lld counts twice", wire_kind_name(h.kind), (long long)h.step);
}

// All that a primary says of a step, in order.
static void step(struct life *x, uint8_t what) {
    for (int k = 0; k < x->s->map->count; k++) {
        bool load = what & 16;
        struct wire_header h = {.kind = WIRE_REPLICATE,
                                .role = PS_SHARD,
                                .job = SIM_JOB,
                                .incarnation = PRIMARY,
                                .key = k,
                                .seq = load,
                                .step = load ? 0 : what >> 5,
                                .lr = TOY_LR,
                                .grad_scale = 1};
        h.version = h.step;
        if (x->s->map->parts[k].shard == 0)
            say(x, h, (size_t)elements(x, k) * (load ? 4 : dtype_size(x->s->t.dtype)), 1);
    }
}

static void decide(struct life *x, uint8_t what) {
    struct wire_header h = {.kind = WIRE_DECISION,
                            .step = (int64_t)fuzz_below(&x->in, STEPS_MAX),
                            .grad_scale = 1,
                            .flags = what & 16 ? WIRE_SKIP : 0};
    bool failed = replica_error(x->r)[0];
    uint64_t was = hash(x);
    int64_t before[KEYS_MAX];
    int keys = x->s->map->count;
    for (int k = 0; k < keys; k++) before[k] = replica_version(x->r, k);
    neighbours_decided(&x->neighbours, &h);
    for (int k = 0; k < keys; k++)
        FUZZ_CHECK(replica_version(x->r, k) == before[k] || x->kept[k][h.step],
                   "key %d makes the update of step %lld without its sum", k, (long long)h.step);
    FUZZ_CHECK(!failed || hash(x) == was, "a replica that has failed goes on");
    was = hash(x);
    neighbours_decided(&x->neighbours, &h);
    FUZZ_CHECK(hash(x) == was, "step %lld is decided twice", (long long)h.step);
}

FUZZ_TARGET(replica) {
    struct life x = {.in = {data, size}};
    struct toy_case t = star_case(&x.in);
    t.consistency = "sync";
    t.replicate = false;
    t.servers = 2;
    t.share = SHARE_NOTHING;
    x.s = sim_create(&t);
    create(&x);
    while (x.in.left) {
        uint8_t what = fuzz_u8(&x.in);
        if ((what & 3) < 2) message(&x);
        if ((what & 3) == 2) decide(&x, what);
        if ((what & 3) == 3) step(&x, what);
    }
    const struct update_scalars last = {.grad_scale = 1};
    bool failed = replica_error(x.r)[0];
    int rc = replica_reach(x.r, 1 + (data && size ? data[size - 1] & 3 : 0), &last);
    FUZZ_CHECK(rc == (replica_error(x.r)[0] ? -1 : 0) && (!failed || rc), "it reaches what it cannot");
    destroy(&x);
}
