// The order of arrivals of an asynchronous run, recorded and replayed: on a network that shuffles, drops, repeats
// and delays as it likes, the weights are the same to the bit; a recording that does not fit is refused.
#include "tests/ps/test_ps_sim.h"

#include <sys/stat.h>
#include <unistd.h>

#include "ps/record/arrivals.h"

#define SHARDS  4
#define WORKERS 3

static const struct toy_case asynchronous = {.dtype = DT_BF16,
                                             .consistency = "async",
                                             .workers = WORKERS,
                                             .servers = 2,
                                             .threads = 2,
                                             .steps = 6,
                                             .overflow_step = -1,
                                             .clip = 0.5f,
                                             .seed = 1};
static const struct manifest manifest = {.hash = 0x1234, .text = "toy"};

struct run {
    struct toy_case t;
    struct sim *s;
    struct arrivals *record[SHARDS], *replay[SHARDS];
    uint64_t hash;  // of the masters
    uint64_t taus;
    uint64_t spread;  // the largest of a step's
};

static struct arrivals_options options_of(const struct run *r, const struct shard_map *map, int shard) {
    return (struct arrivals_options){
        .map = map, .manifest = &manifest, .shard = shard, .workers = WORKERS, .steps = r->t.steps};
}

static int64_t recorded(void *ctx, int worker, int64_t step) { return arrivals_batch(ctx, worker, step); }

// dir: where the recording to replay is; NULL: none. The map outlives the recordings.
static void run_open(struct run *r, uint64_t seed, const struct shard_map *map, const char *dir) {
    *r = (struct run){.t = asynchronous};
    r->t.seed = seed;
    for (int g = 0; g < SHARDS; g++) {
        struct arrivals_options o = options_of(r, map, g);
        r->record[g] = arrivals_create(&o);
        if (dir) assert_non_null(r->replay[g] = arrivals_read(&o, dir));
    }
    struct sim_order order = {.record = r->record, .replay = dir ? r->replay : NULL};
    if (dir) order.recorded = recorded;
    order.ctx = r->replay[0];
    r->s = sim_create_ordered(&r->t, 0, &order);
}

static void run_go(struct run *r) {
    sim_run(r->s);
    r->hash = 5;
    for (int k = 0; k < r->s->map->count; k++) {
        int64_t n = r->s->map->parts[k].end - r->s->map->parts[k].begin;
        for (int64_t i = 0; i < n; i++) r->hash = toy_hash(r->hash + f32_to_bits(r->s->buffers[k].master[i]));
    }
    for (int w = 0; w < WORKERS; w++) {
        const struct staleness *s = &worker_core_status(r->s->workers[w].core)->staleness;
        assert_int_equal(s->spreads, (uint64_t)r->s->workers[w].batches);
        assert_true(s->spread_mean <= (double)s->spread_max);
        if (s->spread_max > r->spread) r->spread = s->spread_max;
    }
    for (int g = 0; g < SHARDS; g++) {
        struct server_totals totals;
        server_core_totals(r->s->shards[g], &totals);
        assert_int_equal(totals.pushes, (uint64_t)(WORKERS * r->t.steps * r->s->map->shard_keys[g]));
        for (uint64_t tau = 0; tau < 64; tau++) r->taus += tau * totals.staleness.count[tau];
        if (r->replay[g]) assert_true(totals.held_peak_bytes > 0);
    }
}

static void run_close(struct run *r) {
    sim_destroy(r->s);
    for (int g = 0; g < SHARDS; g++) {
        arrivals_destroy(&r->record[g]);
        arrivals_destroy(&r->replay[g]);
    }
}

struct place {
    char dir[64], other[64];
    struct layout *l;
    struct config c;
    struct shard_map *map;
};

static int setup(void **state) {
    struct place *p = xcalloc(1, sizeof *p);
    snprintf(p->dir, sizeof p->dir, "/tmp/replay-XXXXXX");
    snprintf(p->other, sizeof p->other, "/tmp/replay-XXXXXX");
    if (!mkdtemp(p->dir) || !mkdtemp(p->other)) return -1;
    p->l = toy_layout(WORKERS, 80);
    p->c = toy_config(&asynchronous);
    p->map = shard_map_of(&p->c, p->l);
    *state = p;
    return p->map->shards == SHARDS ? 0 : -1;
}

static void clear(const char *dir) {
    char path[128];
    for (int g = 0; g < SHARDS; g++) {
        snprintf(path, sizeof path, "%s/arrivals.%d", dir, g);
        unlink(path);
    }
    rmdir(dir);
}

static int teardown(void **state) {
    struct place *p = *state;
    clear(p->dir);
    clear(p->other);
    shard_map_destroy(&p->map);
    layout_destroy(&p->l);
    free(p);
    return 0;
}

static char *contents(const char *dir, int g) {
    char path[128];
    snprintf(path, sizeof path, "%s/arrivals.%d", dir, g);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    char *text = xcalloc(1 << 20, 1);
    fread(text, 1, (1 << 20) - 1, f);
    fclose(f);
    return text;
}

static void replays_are_equal(void **state) {
    const struct place *p = *state;
    struct run first;
    run_open(&first, 7, p->map, NULL);
    first.s->drop_percent = 5;
    first.s->repeat_percent = 10;
    run_go(&first);
    assert_true(first.taus > 0 && first.spread > 0);  // else there is nothing to repeat
    for (int g = 0; g < SHARDS; g++) assert_int_equal(arrivals_write(first.record[g], p->dir), 0);
    bool differs = false;
    for (int i = 0; i < 12; i++) {
        struct run again, free_run;
        run_open(&again, 100 + (uint64_t)i, p->map, p->dir);
        again.s->in_order = i == 0;
        again.s->drop_percent = i > 1 ? 3 * i : 0;
        again.s->repeat_percent = i > 1 ? 2 * i : 0;
        run_go(&again);
        assert_true(again.hash == first.hash && again.taus == first.taus && again.spread == first.spread);
        for (int g = 0; g < SHARDS; g++) {
            assert_int_equal(arrivals_write(again.record[g], p->other), 0);
            char *want = contents(p->dir, g), *got = contents(p->other, g);
            assert_string_equal(want, got);
            free(want);
            free(got);
        }
        run_close(&again);
        run_open(&free_run, 100 + (uint64_t)i, p->map, NULL);  // without the recording the seed decides
        run_go(&free_run);
        differs = differs || free_run.hash != first.hash;
        run_close(&free_run);
    }
    assert_true(differs);
    run_close(&first);
}

static void refused(const struct place *p, const char *text, const char *says) {
    char path[128];
    snprintf(path, sizeof path, "%s/arrivals.0", p->other);
    FILE *f = fopen(path, "w");
    fputs(text, f);
    fclose(f);
    struct run r = {.t = asynchronous};
    struct arrivals_options o = options_of(&r, p->map, 0);
    error_quiet(1);
    struct arrivals *a = arrivals_read(&o, p->other);
    error_quiet(0);
    if (a) fail_msg("taken: %.200s", text);
    if (!strstr(error_last(), says) || !strstr(error_last(), "arrivals.0"))
        fail_msg("\"%s\" does not say \"%s\"", error_last(), says);
}

// After replays_are_equal: its recording, whole and then spoilt.
static void what_does_not_fit_is_refused(void **state) {
    const struct place *p = *state;
    char *whole = contents(p->dir, 0), *text = xcalloc(strlen(whole) + 64, 1);
    for (size_t cut = 0; cut < strlen(whole); cut += 1 + strlen(whole) / 97) {  // cut short anywhere
        snprintf(text, cut + 1, "%s", whole);
        refused(p, text, "line ");
    }
    const char *const changes[][3] = {
        {"workers 3", "workers 2", "line 1: is of another run"},
        {"steps 6", "steps 7", "line 1: is of another run"},
        {"manifest 0000000000001234", "manifest 0000000000001235", "line 1: is of"},
        {"starring arrivals 2", "starring arrivals 1", "line 1: is no head"},
        {"key ", "kex ", "line 2: is torn"},
        {"@", "x", "line 2: is torn"},
        {"@0", "@9", "line 2: has versions that do not follow"},
        {" 1#", " 3#", "line 2: names a worker"},
        {"#1@", "#0@", "line 2: has a batch twice"},
        {"#1@", "#18@", "line 2: has a batch twice, or one that the run does not have"},
        {"#1@", "@", "line 2: is torn"},
        {"end ", "end 1", "is not the \"end\""}};
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        const char *at = strstr(whole, changes[i][0]);
        assert_non_null(at);
        sprintf(text, "%.*s%s%s", (int)(at - whole), whole, changes[i][1], at + strlen(changes[i][0]));
        refused(p, text, changes[i][2]);
    }
    sprintf(text, "%sx\n", whole);
    refused(p, text, "is followed by more");
    free(whole);
    free(text);
}

// A pull that comes behind others' pushes still gets the version that its worker computed on, for they wait for it;
// a repeated one gets it again when the key has moved on.
static void late_pulls_get_their_version(void **state) {
    const struct place *p = *state;
    char path[128];
    struct toy_case t = asynchronous;
    struct arrivals_options o = {
        .map = p->map, .manifest = &manifest, .shard = 0, .workers = WORKERS, .steps = 2};
    t.steps = 2;
    snprintf(path, sizeof path, "%s/arrivals.0", p->other);
    FILE *f = fopen(path, "w");
    fprintf(f, "starring arrivals 2 shard 0 workers 3 steps 2 manifest 0000000000001234 (toy)\n");
    for (int k = 0; k < p->map->count; k++)
        if (p->map->parts[k].shard == 0)
            fprintf(f, "key %d: 0#0@0 1#1@0+1 0#2@1+1 1#3@2+1 2#4@0+4 2#5@5\n", k);
    fprintf(f, "end %d\n", p->map->shard_keys[0]);
    fclose(f);
    struct arrivals *replay[SHARDS] = {arrivals_read(&o, p->other)};
    assert_non_null(replay[0]);
    struct sim *s = sim_create_ordered(&t, 0, &(struct sim_order){.replay = replay});
    int key = 0;
    while (s->map->parts[key].shard != 0) key++;
    size_t n = (size_t)(s->map->parts[key].end - s->map->parts[key].begin);
    struct wire_header h = {.kind = WIRE_INIT,
                            .role = PS_WORKER,
                            .job = SIM_JOB,
                            .incarnation = sim_incarnation(PS_WORKER, 0),
                            .key = key,
                            .seq = 1};
    struct server_core *core = s->shards[0];
    server_core_message(core, &h, sim_frame(s, xcalloc(n, 4), 4 * n), 0);
    h = (struct wire_header){.kind = WIRE_PUSH,
                             .role = PS_WORKER,
                             .job = SIM_JOB,
                             .incarnation = sim_incarnation(PS_WORKER, 0),
                             .key = key};
    h.lr = 0.1f;
    h.grad_scale = 1;
    struct wire_header other = h, pull = h;
    other.rank = 1;
    other.batch = 1;
    other.incarnation = sim_incarnation(PS_WORKER, 1);
    server_core_message(core, &other, sim_frame(s, xcalloc(n, 2), 2 * n), 0);
    assert_int_equal(server_core_version(core, key), 0);  // not its turn
    server_core_message(core, &h, sim_frame(s, xcalloc(n, 2), 2 * n), 0);
    assert_int_equal(server_core_version(core, key), 1);  // worker 0 has yet to read it
    pull.kind = WIRE_PULL;
    pull.step = 1;
    pull.seq = 1;
    sim_forget(s);
    server_core_message(core, &pull, NULL, 0);
    assert_int_equal(server_core_version(core, key), 2);
    int replies = 0;
    for (int m = 0; m < s->count; m++) {
        if (s->packets[m].header.kind != WIRE_PULL_REPLY) continue;
        replies++;
        assert_int_equal(s->packets[m].header.version, 1);
        struct ps_message again = {.header = s->packets[m].header};
        assert_true(server_core_renew(core, 0, &again));
        assert_int_equal(again.header.version, 1);
        assert_memory_equal(again.payload, s->packets[m].payload, 2 * n);
    }
    assert_int_equal(replies, 1);
    assert_string_equal(server_core_error(core), "");
    sim_destroy(s);
    arrivals_destroy(&replay[0]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(replays_are_equal),
        cmocka_unit_test(what_does_not_fit_is_refused),
        cmocka_unit_test(late_pulls_get_their_version),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
