// A job whose workers die and come back (--elastic) when the input says so, over a network that it spoils. The weights must
// be those of a plain trainer that is told who belonged to each step.
#include "tests/fuzz/star/star_case.h"
#include "tests/ps_elastic/elastic_sim.h"

static struct fuzz_bytes *choices;

// After its end the case's own numbers follow, so that a job ends.
static uint64_t draw(struct sim *s, uint64_t n) {
    return choices->left ? fuzz_below(choices, n) : rng_below(s->t.seed, s->draws++, 99, n);
}

FUZZ_TARGET(elastic) {
    struct fuzz_bytes in = {data, size};
    struct toy_case t = star_case(&in);
    uint8_t flags = fuzz_u8(&in);
    struct fate f = {.kills = flags & 3, .told = flags & 4};
    bool async = strcmp(t.consistency, "async") == 0;
    t.workers = 2 + (t.workers > 1);
    t.overflow_step = -1;
    t.steps = 3;
    t.elastic_min = 1;
    if (async) return;
    struct sim *s = sim_create(&t);
    choices = &in;
    s->draw = draw;
    s->drop_percent = flags >> 3 & 1 ? 10 : 0;
    s->repeat_percent = flags >> 4 & 1 ? 10 : 0;
    s->in_order = flags >> 5 & 1;
    run(s, &f);
    compare(s, &f);
    end(s, &f);
}
