// Many keys: a wake-up costs what has changed. A worker, a server and a link with 14,000 keys or messages in hand are given one
// message at a time, and the pages of their records that each touches are counted: the records are out of reach before it, and
// the first access to a page brings it back. A loop over all keys anywhere would touch hundreds.
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ps/server/server_state.h"
#include "ps/worker/worker_core_state.h"
#include "test_ps_sim.h"

#define KEYS      14000
#define KEY_BYTES 1024  // the least that a partition may have
#define PAGES_EACH \
    6  // of a message: its key, its slot, both over a page's end, and where it stands beside others

// ---------------------------------------------------------------- records out of reach
static struct guard {
    char *begin[4], *end[4];  // whole pages
    int count;
    size_t page;
    volatile int touched;
} guard;

static void on_touch(int number, siginfo_t *info, void *context) {
    (void)context;
    char *page = (char *)((uintptr_t)info->si_addr & ~(guard.page - 1));
    for (int i = 0; i < guard.count; i++) {
        if (page < guard.begin[i] || page >= guard.end[i]) continue;
        guard.touched = guard.touched + 1;
        mprotect(page, guard.page, PROT_READ | PROT_WRITE);
        return;
    }
    signal(number, SIG_DFL);
}

static void guard_open(void) {
    struct sigaction a = {.sa_sigaction = on_touch, .sa_flags = SA_SIGINFO};
    guard = (struct guard){.page = (size_t)sysconf(_SC_PAGESIZE)};
    sigaction(SIGSEGV, &a, NULL);
}

// The whole pages of a record.
static void guard_add(void *at, size_t bytes) {
    uintptr_t mask = guard.page - 1;
    assert_true(bytes > 100 * guard.page);
    guard.begin[guard.count] = (char *)(((uintptr_t)at + mask) & ~mask);
    guard.end[guard.count++] = (char *)(((uintptr_t)at + bytes) & ~mask);
}

static void reach(int how) {
    for (int i = 0; i < guard.count; i++)
        assert_int_equal(mprotect(guard.begin[i], (size_t)(guard.end[i] - guard.begin[i]), how), 0);
}

static void guard_close(void) {
    reach(PROT_READ | PROT_WRITE);
    signal(SIGSEGV, SIG_DFL);
}

static int pages(void) {
    int n = 0;
    for (int i = 0; i < guard.count; i++) n += (int)((size_t)(guard.end[i] - guard.begin[i]) / guard.page);
    return n;
}

// ---------------------------------------------------------------- one worker, one server
static struct sim *many_create(void) {
    const struct toy_case t = {.dtype = DT_F32,
                               .consistency = "sync",
                               .workers = 2,
                               .servers = 1,
                               .threads = 1,
                               .steps = 2,
                               .overflow_step = -1,
                               .partition_bytes = KEY_BYTES,
                               .rows = (int)((int64_t)KEYS * KEY_BYTES / 4 / (int64_t)(17 * TOY_UNITS))};
    struct sim *s = sim_create(&t);
    assert_in_range(s->map->count, KEYS, KEYS + 100);
    return s;
}

// Says nothing to anybody; counts.
struct said {
    int pushes, replies;
    int last;  // key of the last push
    _Atomic int *inflight;
};
static void note(void *ctx, int peer, const struct ps_message *m) {
    struct said *l = ctx;
    (void)peer;
    l->pushes += m->header.kind == WIRE_PUSH;
    l->replies += m->header.kind == WIRE_PULL_REPLY;
    if (m->header.kind == WIRE_PUSH) l->last = m->header.key;
    if (m->header.kind == WIRE_PULL_REPLY && m->inflight) {
        l->inflight = m->inflight;
        atomic_fetch_add(m->inflight, 1);
    }
}

// A turn of the communication thread: one message or none, and the clock. Returns the pages that it touched.
static int turn(struct worker_core *w, const struct wire_header *h) {
    int before = guard.touched;
    reach(PROT_NONE);
    if (h) assert_int_equal(worker_core_message(w, 0, h, NULL, 1), 0);
    assert_int_equal(worker_core_tick(w, 1), 0);
    for (int u = 0; u < TOY_UNITS; u++)
        assert_true(worker_core_busy(w, u, 0) >= 0 && worker_core_landed(w, u) >= 0 &&
                    worker_core_version(w) >= 0 && worker_core_fills(w, u) <= 1);
    return guard.touched - before;
}

static void test_worker(void **state) {
    (void)state;
    struct sim *s = many_create();
    struct said said = {0};
    struct worker_core_options o = {.rule = consistency_of(&s->c),
                                    .layout = s->l,
                                    .map = s->map,
                                    .dtype = DT_F32,
                                    .buffers = &s->workers[0].buffers,
                                    .credit_bytes = 64 * KEY_BYTES,
                                    .heartbeat_s = 1e6,
                                    .lost_s = 1e6,
                                    .port = {&said, note}};
    struct worker_core *w = worker_core_create(&o);
    const struct push_info p = {.step = 0, .lr = 0.1f, .grad_scale = 1.0f};
    int n = s->map->count, total = 0;
    for (int u = TOY_UNITS - 1; u >= 0; u--) worker_core_push_unit(w, u, &p);
    worker_core_tick(w, 1);
    assert_int_equal(said.pushes, 32);  // half of the credits
    guard_open();
    guard_add(w->keys, (size_t)n * sizeof *w->keys);
    guard_add(w->slots, (size_t)n * sizeof *w->slots);
    assert_true(pages() > 400);
    for (int i = 0; i < 100; i++) total += turn(w, NULL);
    assert_true(total <= 100 * 2);  // where the next one stands that waits for credits
    total = 0;
    for (int key = 0; key < n; key++)
        total += turn(w, &(struct wire_header){.kind = WIRE_PUSH_ACK, .key = key, .step = 0});
    assert_int_equal(said.pushes, n);
    assert_int_equal(said.last, n - 1);
    assert_true(total <= n * PAGES_EACH);
    // Weights land. When the last key of a unit has, all of its keys are looked at.
    total = 0;
    for (int key = 0; key < n; key++) {
        const struct partition *part = &s->map->parts[key];
        struct wire_header h = {.kind = WIRE_PULL_REPLY, .key = key, .step = 1, .version = 1};
        reach(PROT_READ | PROT_WRITE);
        h.seq = w->slots[key].pull_seq;
        h.data_bytes = w->keys[key].bytes;
        w->keys[key].shared = true;  // the weights are there
        assert_int_equal(part->shard, 0);
        total += turn(w, &h);
    }
    assert_true(total <= n * PAGES_EACH + 3 * pages());
    guard_close();
    for (int u = 0; u < TOY_UNITS; u++) {
        assert_int_equal(worker_core_landed(w, u), 1);
        assert_int_equal(worker_core_version(w), 1);
        assert_int_equal(worker_core_fills(w, u), 1);
    }
    assert_false(worker_core_transferring(w) || worker_core_awaits_answer(w, 0));
    worker_core_destroy(&w);
    sim_destroy(s);
}

static int push(struct sim *s, struct server_core *c, int w, int key, int64_t step) {
    const struct partition *part = &s->map->parts[key];
    size_t bytes = (size_t)(part->end - part->begin) * 4;
    struct wire_header h = {.kind = WIRE_PUSH,
                            .role = PS_WORKER,
                            .rank = w,
                            .job = SIM_JOB,
                            .incarnation = 100 + (uint64_t)w,
                            .key = key,
                            .step = step,
                            .version = step,
                            .lr = 0.1f,
                            .grad_scale = 1.0f,
                            .seq = (uint64_t)(step + 1),
                            .flags = WIRE_PULLS};
    struct ps_frame *f = sim_frame(s, xcalloc(bytes, 1), bytes);
    int before = guard.touched;
    reach(PROT_NONE);
    assert_int_equal(server_core_message(c, &h, f, 1), 0);
    assert_int_equal(server_core_tick(c, 1), 0);
    return guard.touched - before;
}

// Each key's update of the second step waits for the replies of the first, which are still leaving.
static void test_server(void **state) {
    (void)state;
    struct sim *s = many_create();
    struct said said = {0};
    struct server_core_options o = {.config = &s->c,
                                    .layout = s->l,
                                    .map = s->map,
                                    .buffers = s->buffers,
                                    .job = SIM_JOB,
                                    .port = {&said, note}};
    struct server_core *c = server_core_create(&o);
    int n = s->map->count, total = 0;
    for (int w = 0; w < 2; w++) server_core_member(c, w, 100 + (uint64_t)w, 0);
    for (int key = 0; key < n; key++) c->keys[key].loaded = true;
    guard_open();
    guard_add(c->keys, (size_t)n * sizeof *c->keys);
    for (int key = 0; key < n; key++) total += push(s, c, 1, key, 0) + push(s, c, 0, key, 0);
    assert_true(total <= 2 * n * PAGES_EACH);
    assert_int_equal(said.replies, 2 * n);
    reach(PROT_READ | PROT_WRITE);
    for (int key = 0; key < n; key++) {
        assert_int_equal(atomic_load(&c->keys[key].inflight), 2);
        if (key != 7) atomic_store(&c->keys[key].inflight, 0);
    }
    total = push(s, c, 0, 7, 1) + push(s, c, 1, 7, 1);
    assert_true(server_core_is_urgent(c));
    for (int key = 100; key < 200; key++) total += push(s, c, 0, key, 1);
    assert_true(total <= 104 * 2 * PAGES_EACH);  // and the one that waits
    assert_int_equal(said.replies, 2 * n);
    reach(PROT_READ | PROT_WRITE);
    atomic_store(&c->keys[7].inflight, 0);
    assert_int_equal(server_core_tick(c, 1), 0);
    assert_int_equal(said.replies, 2 * n + 2);
    assert_false(server_core_is_urgent(c));
    guard_close();
    server_core_destroy(&c);
    sim_destroy(s);
}

// ---------------------------------------------------------------- one link
struct wire {
    int count, at;
    struct wire_header way[2 * KEYS + 100];
};
static void put(void *ctx, int peer, const struct ps_message *m) {
    struct wire *x = ctx;
    (void)peer;
    x->way[x->count] = m->header;
    x->way[x->count++].incarnation = 1;
}

// Messages that nobody has heard are not looked at because of the one that has been.
static void test_link(void **state) {
    (void)state;
    static struct wire out, back;
    struct link *a = star_link_create(
                    &(struct star_link_options){.peers = 1, .repeat_most_s = 1, .network = {&out, put}}),
                *b = star_link_create(
                    &(struct star_link_options){.peers = 1, .repeat_most_s = 1, .network = {&back, put}});
    const struct ps_port to = star_link_port(a), from = star_link_port(b);
    double now = 0;
    for (int i = 0; i < KEYS; i++)
        to.send(to.ctx, 0,
                &(struct ps_message){.header = {.kind = WIRE_PUSH}, .payload = "abcd", .bytes = 4});
    for (int i = 0; i < KEYS; i++) {
        now += 1e-4;
        if (i == 1000) continue;  // lost
        assert_true(star_link_receive(b, 0, &out.way[i], now));
        from.send(from.ctx, 0, &(struct ps_message){.header = {.kind = WIRE_HEARTBEAT}});
        back.count--;
        star_link_receive(a, 0, &back.way[back.count], now);
        link_tick(a, now);
    }
    struct link_totals t = link_totals(a);
    assert_true(t.looked <= 4 * KEYS);
    assert_true(t.resent > 0);
    // The peer is silent from here on: what it has not heard is looked at when a question is due.
    out.count = 0;
    link_forget(a, 0);
    link_tick(a, now += 10);
    for (int i = 0; i < KEYS; i++)
        to.send(to.ctx, 0,
                &(struct ps_message){.header = {.kind = WIRE_PUSH}, .payload = "abcd", .bytes = 4});
    out.count = 0;
    for (int ms = 0; ms < 3000; ms++) link_tick(a, now += 0.001);
    assert_in_range(link_totals(a).questions - t.questions, 4, 20);
    assert_true(link_totals(a).looked - t.looked <= 50 * KEYS);
    // Nor is what has not left yet.
    _Atomic int inflight = KEYS;
    link_forget(a, 0);
    for (int i = 0; i < KEYS; i++)
        to.send(to.ctx, 0,
                &(struct ps_message){
                    .header = {.kind = WIRE_PUSH}, .payload = "abcd", .bytes = 4, .inflight = &inflight});
    t = link_totals(a);
    for (int ms = 0; ms < 3000; ms++) link_tick(a, now += 0.001);
    assert_true(link_totals(a).looked - t.looked <= 3000);
    assert_int_equal(link_totals(a).questions, t.questions);
    link_destroy(&a);
    link_destroy(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_worker), cmocka_unit_test(test_server),
                                       cmocka_unit_test(test_link)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
