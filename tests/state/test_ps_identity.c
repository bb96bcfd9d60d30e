// A star lets in roles of the same run alone. Each key that they must agree on is named with both values where a role's differs.
// The scheduler does not know data and devices: those are compared with the worker that came first.
// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
// clang-format on

#include "ps/scheduler/scheduler_core.h"
#include "shared/core/text.h"
#include "shared/state/identity.h"
#include "tests/ps/test_ps_toy.h"
#include "tests/ps_loss/sim_meeting.h"

struct coming {
    struct toy_case t;
    struct config c;
    struct layout *l;
    struct shard_map *map;
    struct manifest manifest;  // the scheduler's
    struct scheduler_core *core;
    struct met met;
    uint64_t life;  // of the process that came last
};

static struct coming *coming_create(void) {
    struct coming *x = xcalloc(1, sizeof *x);
    x->t = (struct toy_case){
        .dtype = DT_F16, .consistency = "sync", .workers = 3, .servers = 1, .threads = 1, .steps = 4};
    x->c = toy_config(&x->t);
    x->c.topology = (char *)"ps:sync";
    x->l = toy_layout(3, 5);
    x->map = shard_map_of(&x->c, x->l);
    x->manifest = manifest_make(&(struct ps_role_options){.config = &x->c, .layout = x->l}, x->map);
    x->core = scheduler_core_create(&(struct scheduler_options){
        .config = &x->c, .map = x->map, .manifest = x->manifest, .job = 7, .publish = met_port(&x->met)});
    return x;
}

static void coming_destroy(struct coming *x) {
    scheduler_core_destroy(&x->core);
    manifest_release(&x->manifest);
    shard_map_destroy(&x->map);
    layout_destroy(&x->l);
    free(x);
}

// The scheduler's identity, with keys added or changed; NULL ends them.
static struct identity *with(const struct coming *x, const char *const *pairs) {
    struct identity *i = identity_parse(x->manifest.identity);
    for (; pairs && pairs[0]; pairs += 2) identity_put(i, pairs[0], pairs[1]);
    return i;
}

// A process comes and says r. Why it is given up, or "".
static const char *ready(struct coming *x, int member, const struct notice_ready *r) {
    int before = x->met.given_up, workers, servers, missing;
    scheduler_core_waits(x->core, &workers, &servers);
    missing = workers + servers;
    met_tell(x->core, met_came(member, ++x->life, 1), 0);
    met_tell(x->core, met_ready(member, x->life, r), 0);
    bool refused = x->met.given_up > before;
    scheduler_core_waits(x->core, &workers, &servers);
    assert_int_equal(missing - workers - servers, !refused);
    return refused ? x->met.why : "";
}

// The same of a role that is `i`; frees it.
static const char *comes(struct coming *x, enum ps_role role, int rank, struct identity *i) {
    char *text = identity_text(i);
    int member = rank + (role == PS_SERVER ? x->c.workers : 0);
    struct notice_ready r = {.epoch = 1,
                             .manifest = identity_hash(i, IDENTITY_TRAJECTORY | IDENTITY_RUN),
                             .identity = text,
                             .endpoints = role == PS_SERVER ? "tcp://h:1\n" : ""};
    const char *why = ready(x, member, &r);
    free(text);
    identity_destroy(&i);
    return why;
}

static void test_every_key_is_named(void **state) {
    (void)state;
    struct identity_key k;
    int named = 0;
    for (size_t n = 0; (k = identity_key_at(n)).key; n++) {
        if (k.uses & IDENTITY_LOCAL || !(k.uses & (IDENTITY_TRAJECTORY | IDENTITY_RUN))) continue;
        for (int server = 0; server < 2; server++) {
            struct coming *x = coming_create();
            struct identity *own = with(x, NULL);
            char expected[256];
            const char *had = identity_get(own, k.key), *name = server ? "server 0" : "worker 1";
            snprintf(expected, sizeof expected,
                     had ? "%s has %s = other, the scheduler has %s: %s"
                         : "%s has %s = other, the scheduler has none%.0s: %s",
                     name, k.key, had ? had : "", k.advice ? k.advice : "use one configuration");
            const char *said = comes(x, server ? PS_SERVER : PS_WORKER, !server,
                                     with(x, (const char *const[]){k.key, "other", NULL}));
            assert_string_equal(said, expected);
            identity_destroy(&own);
            coming_destroy(x);
            named++;
        }
    }
    assert_true(named > 80);
}

// A key that moves nothing and concerns no rank passes.
static void test_what_may_differ(void **state) {
    (void)state;
    struct identity_key k;
    for (size_t n = 0; (k = identity_key_at(n)).key; n++) {
        if (k.uses & (IDENTITY_TRAJECTORY | IDENTITY_RUN)) continue;
        struct coming *x = coming_create();
        assert_string_equal(comes(x, PS_WORKER, 0, with(x, (const char *const[]){k.key, "one", NULL})), "");
        assert_string_equal(comes(x, PS_WORKER, 1, with(x, (const char *const[]){k.key, "two", NULL})), "");
        coming_destroy(x);
    }
}

static void test_workers_are_compared_with_the_first(void **state) {
    (void)state;
    struct coming *x = coming_create();
    const char *const first[] = {"data", "8 tokens, xxh64 aa", "cuda.bias_grad", "kernel", NULL};
    const char *const other[] = {"data", "8 tokens, xxh64 ab", "cuda.bias_grad", "kernel", NULL};
    const char *const slow[] = {"data", "8 tokens, xxh64 aa", "cuda.bias_grad", "epilogue", NULL};
    assert_string_equal(comes(x, PS_SERVER, 0, with(x, NULL)), "");  // it knows no data, and is no reference
    assert_string_equal(comes(x, PS_WORKER, 2, with(x, first)), "");
    assert_string_equal(
        comes(x, PS_WORKER, 0, with(x, other)),
        "worker 0 has data = 8 tokens, xxh64 ab, worker 2 has 8 tokens, xxh64 aa: give all of them "
        "the same files (data.path, data.val_path, data.val_fraction)");
    assert_string_equal(comes(x, PS_WORKER, 0, with(x, slow)),
                        "worker 0 has cuda.bias_grad = epilogue, worker 2 has kernel: use one configuration");
    assert_string_equal(comes(x, PS_WORKER, 0, with(x, first)), "");
    assert_int_equal(scheduler_core_tick(x->core, 1e6), -1);
    assert_non_null(strstr(scheduler_core_error(x->core),
                           "worker 1 did not join within 30000 ms (parameter_server.deadline_ms) of "
                           "the last that joined; refused: worker 0 has cuda.bias_grad"));
    coming_destroy(x);
}

// Another program names no keys.
static void test_other_programs(void **state) {
    (void)state;
    struct coming *x = coming_create();
    struct notice_ready r = {.epoch = 1, .manifest = 3, .endpoints = "tcp://h:1\n"};
    const char *why = ready(x, 3, &r);
    assert_non_null(strstr(why, "server 0 does not name its run"));
    assert_non_null(strstr(why, "install one version everywhere"));
    r.identity = "{\"a\": ";
    assert_non_null(strstr(ready(x, 3, &r), "server 0"));
    r.manifest = x->manifest.hash;
    r.endpoints = "";
    assert_non_null(strstr(ready(x, 3, &r), "without the addresses"));
    assert_string_equal(
        comes(x, PS_WORKER, 0, with(x, (const char *const[]){"program", "starring 9.9, abc", NULL})),
        "worker 0 has program = starring 9.9, abc, the scheduler has starring " STARRING_VERSION
        ": install one version of starring for all of them");
    // A newer one may compare what this one does not know.
    assert_string_equal(
        comes(x, PS_WORKER, 0, with(x, (const char *const[]){"gravity", "9.81", NULL})),
        "worker 0 has gravity = 9.81, the scheduler has none: install one version of starring for all "
        "of them");
    coming_destroy(x);
}

// An order of arrivals may be repeated by a run that is evaluated otherwise, but not by one that updates otherwise.
static void test_the_order_of_arrivals(void **state) {
    (void)state;
    struct coming *x = coming_create();
    uint64_t hash = manifest_of_order(&x->c, x->l, x->map).hash;
    x->c.eval_every = 5;
    x->c.deadline_ms = x->c.ps.deadline_ms = 77;
    assert_true(manifest_of_order(&x->c, x->l, x->map).hash == hash);
    struct config others[] = {x->c, x->c, x->c, x->c, x->c};
    others[0].optimizer.beta2 = 0.5f;
    others[1].steps++;
    others[2].workers++;
    others[3].ps.servers++;
    others[4].schedule.type = SCHEDULE_WARMUP;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (manifest_of_order(&others[i], x->l, x->map).hash == hash) fail_msg("change %zu", i);
    coming_destroy(x);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_key_is_named),
        cmocka_unit_test(test_what_may_differ),
        cmocka_unit_test(test_workers_are_compared_with_the_first),
        cmocka_unit_test(test_other_programs),
        cmocka_unit_test(test_the_order_of_arrivals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
