// A whole job of state machines, joined by a network that the input drives: it delivers, loses, repeats, delays and
// overtakes; time passes, a stranger speaks. When the input is used up the network is kind, and the job must come to its end
// with the bits of an undisturbed one. On the way no version goes back and a step has one decision.
#include "tests/fuzz/star/star_case.h"
#include "tests/ps/test_ps_sim.h"

#define TURNS_MAX 60000  // of a kind network

struct star {
    struct sim *s;
    struct fuzz_bytes in;
    struct wire_header decisions[SIM_STEPS];
    int64_t *versions;  // (map->count) seen so far
    size_t memory_most;
};
static struct star *star;  // one at a time

static uint64_t draw(struct sim *s, uint64_t n) {
    (void)s;
    return fuzz_below(&star->in, n);
}

// One decision for each step, whoever hears it and however often.
static bool takes(struct sim *s, const struct sim_packet *p, struct wire_header *h, struct ps_frame *frame) {
    (void)s, (void)frame;
    if (p->from.role != PS_SCHEDULER || h->kind != WIRE_DECISION) return false;
    FUZZ_CHECK(h->step < s->t.steps, "step %lld is decided in a job of %d", (long long)h->step, s->t.steps);
    struct wire_header *d = &star->decisions[h->step];
    if (d->kind)
        FUZZ_CHECK(d->grad_scale == h->grad_scale && d->flags == h->flags && d->norm == h->norm,
                   "step %lld has two decisions", (long long)h->step);
    *d = *h;
    return false;
}

static void check_versions(struct star *x) {
    struct sim *s = x->s;
    // An update for each push, or for each step.
    int64_t most = s->t.steps * (consistency_of(&s->c).row->on_arrival ? s->t.workers : 1);
    for (int k = 0; k < s->map->count; k++) {
        int64_t now = server_core_version(s->shards[s->map->parts[k].shard], k), before = x->versions[k];
        FUZZ_CHECK(now >= before && now <= most, "key %d goes from version %lld to %lld", k,
                   (long long)before, (long long)now);
        x->versions[k] = now;
    }
}

// A process that does not belong to the job, or did in an earlier life, speaks for somebody who does.
static void stranger(struct star *x) {
    struct sim *s = x->s;
    struct wire_header h = star_header(&x->in, s->map->count);
    uint8_t who = fuzz_u8(&x->in);
    h.role = (enum ps_role)fuzz_below(&x->in, PS_ROLES);
    h.rank = (int32_t)fuzz_below(&x->in, 4);
    h.job = who & 1 ? SIM_JOB : SIM_JOB - 1;
    h.incarnation = who & 1 ? 3 + fuzz_below(&x->in, 250) : sim_incarnation(h.role, h.rank);
    uint8_t bytes[WIRE_HEADER_MAX];
    size_t payload = fuzz_below(&x->in, 64) * 64, n = wire_encode(&h, bytes);
    if (!n || wire_decode(bytes, n, payload, &h) != 0) return;
    struct ps_frame *f = payload ? sim_frame(s, xcalloc(payload, 1), payload) : NULL;
    if (who & 4) {
        int member = scheduler_core_sender_of(s->scheduler, &h);
        scheduler_core_message(s->scheduler, &h, s->now);
        ps_frame_release(f);
        FUZZ_CHECK(member < 0, "the scheduler takes a stranger's %s for member %d", wire_kind_name(h.kind),
                   member);
        assert_true(!scheduler_core_error(s->scheduler)[0]);
    } else {
        int g = (int)fuzz_below(&x->in, (uint64_t)s->map->shards);
        assert_int_equal(server_core_message(s->shards[g], &h, f, s->now), 0);
    }
}

static void work(struct star *x) {
    struct sim *s = x->s;
    struct sim_worker *w = &s->workers[sim_draw(s, (uint64_t)s->t.workers)];
    sim_work(s, w);
    assert_int_equal(sim_tick_worker(s, w), 0);
}

static void tick(struct star *x) {
    struct sim *s = x->s;
    for (int g = 0; g < s->map->shards; g++) assert_int_equal(sim_tick_shard(s, g), 0);
    assert_int_equal(sim_tick_scheduler(s), 0);
}

// The next event that the input names.
static void turn(struct star *x) {
    struct sim *s = x->s;
    uint8_t what = fuzz_u8(&x->in);
    s->now += 0.001;
    s->drop_percent = (what & 15) == 9 ? 100 : 0;
    s->repeat_percent = (what & 15) == 10 ? 100 : 0;
    s->in_order = what & 128;
    switch (what & 15) {
        case 0:
        case 1:
        case 2:
        case 9:
            if (s->count) assert_int_equal(sim_deliver(s), 0);
            break;
        case 3:
            for (int i = what >> 4; i >= 0 && s->count; i--) assert_int_equal(sim_deliver(s), 0);
            break;
        case 4:
        case 10:
            for (int i = what >> 4; i >= 0; i--) work(x);
            break;
        case 5:
            s->now += 0.01 * (1 + (what >> 4));
            tick(x);
            break;
        case 6:
            s->now += (what >> 4) + 1;
            tick(x);
            break;
        case 7:
            stranger(x);
            break;
        default:
            tick(x);
            work(x);
    }
    check_versions(x);
}

static void check_end(struct star *x) {
    struct sim *s = x->s;
    struct toy_ref r = toy_ref_start(&s->t, s->l);
    for (int64_t step = 0; step < s->t.steps; step++) toy_ref_step(&s->t, s->l, &s->c, &r, step);
    for (int w = 0; w < s->t.workers; w++)
        for (int u = 0; u < s->l->count; u++)
            FUZZ_CHECK(memcmp(s->workers[w].weights[u], r.weight[u],
                              (size_t)s->l->units[u].n_pad * dtype_size(s->t.dtype)) == 0,
                       "unit %d of worker %d has other weights than an undisturbed run", u, w);
    for (int k = 0; k < s->map->count; k++) {
        const struct partition *p = &s->map->parts[k];
        FUZZ_CHECK(server_core_version(s->shards[p->shard], k) == r.updates, "key %d has another version", k);
        FUZZ_CHECK(
            memcmp(s->buffers[k].master, r.master[p->unit] + p->begin, (size_t)(p->end - p->begin) * 4) == 0,
            "key %d has other masters", k);
    }
    toy_ref_free(&r);
}

static void run(struct star *x) {
    struct sim *s = x->s;
    size_t before = fuzz_allocated(), turns = 0;
    s->draw = draw;
    s->takes = takes;
    for (int u = 0; u < s->l->count; u++)
        worker_core_init_unit(s->workers[0].core, u, s->workers[0].init[u], 1);
    while (x->in.left) turn(x), turns++;
    // The messages in flight, and as many again: a job's memory does not grow with its messages.
    size_t under_way = 0, now = fuzz_allocated();
    for (int i = 0; i < s->count; i++) under_way += s->packets[i].bytes + 64;
    under_way += (size_t)s->capacity * sizeof *s->packets;
    FUZZ_CHECK(now < before + under_way + (1 << 20), "%zu bytes more after %zu turns", now - before, turns);
    s->drop_percent = s->repeat_percent = 0;
    s->in_order = true;
    s->draw = NULL;
    for (int i = 0; i < TURNS_MAX && !sim_over(s); i += 100) {
        sim_go_on(s, 100);
        check_versions(x);
        s->now += 0.1;
    }
    FUZZ_CHECK(sim_over(s), "the job hangs");
    if (!consistency_of(&s->c).row->on_arrival) check_end(x);
}

FUZZ_TARGET(star) {
    struct star x = {.in = {data, size}};
    struct toy_case t = star_case(&x.in);
    star = &x;
    x.s = sim_create(&t);
    x.versions = xcalloc((unsigned long)x.s->map->count, sizeof *x.versions);
    for (int k = 0; k < x.s->map->count; k++)
        x.versions[k] = server_core_version(x.s->shards[x.s->map->parts[k].shard], k);
    run(&x);
    free(x.versions);
    sim_destroy(x.s);
}
