#include "ps/agree/step_set.h"

#include <stdlib.h>

#include "shared/core/error.h"

struct step_set {
    struct step_set_options o;
    struct train_state state;  // before the open step
    uint64_t live, joining;
    // Of the open step:
    uint64_t members, reported, set;
    uint64_t *arrived;  // (shards)
};

struct step_set *step_set_create(const struct step_set_options *o) {
    struct step_set *s = xcalloc(1, sizeof *s);
    s->o = *o;
    s->state = o->start;
    s->live = s->members = elastic_all(o->workers);
    s->arrived = xcalloc((unsigned long)o->shards + 1, sizeof *s->arrived);
    return s;
}

void step_set_destroy(struct step_set **at) {
    if (!*at) return;
    free((*at)->arrived);
    free(*at);
    *at = NULL;
}

void step_set_begin(struct step_set *s, const struct train_state *state) {
    int64_t step = s->state.step;
    s->state = *state;
    s->state.step = step;
}

// ---------------------------------------------------------------- workers
bool step_set_bears(const struct step_set *s, int worker) {
    uint64_t rest = s->live & ~elastic_bit(worker);
    return worker > 0 && elastic_count(rest) >= s->o.min;
}

void step_set_lost(struct step_set *s, int worker) {
    s->live &= ~elastic_bit(worker);
    s->joining &= ~elastic_bit(worker);
}

void step_set_join(struct step_set *s, int worker) { s->joining |= elastic_bit(worker); }

void step_set_admit(struct step_set *s) {
    s->live |= s->joining;
    s->joining = 0;
}

// ---------------------------------------------------------------- the open step
void step_set_reported(struct step_set *s, int worker) { s->reported |= elastic_bit(worker); }

void step_set_arrived(struct step_set *s, int shard, uint64_t workers) { s->arrived[shard] |= workers; }

static uint64_t complete(const struct step_set *s) {
    uint64_t workers = s->members & s->reported;
    for (int i = 0; i < s->o.shards; i++) workers &= s->arrived[i];
    return workers;
}

bool step_set_fix(struct step_set *s) {
    uint64_t there = complete(s), owed = s->members & s->live & ~there;
    if (s->set || owed || !there) return false;
    s->set = there;
    return true;
}

uint64_t step_set_fixed(const struct step_set *s) { return s->set; }

void step_set_close(struct step_set *s, bool skipped, bool admits) {
    struct train_state *x = &s->state;
    // At its end it is the workers that end the run: they know whose gradient it was, and of which tensor.
    if (!skipped || !scaler_at_end(&x->scaler, &s->o.scaler))
        scaler_update(&x->scaler, &s->o.scaler, skipped);
    x->step++;
    x->dealt += s->o.own * elastic_count(s->members);
    x->skipped_in_a_row = skipped ? x->skipped_in_a_row + 1 : 0;
    if (!skipped) x->updates++;
    if (!skipped) x->samples += s->o.own * elastic_count(s->set);
    if (admits) step_set_admit(s);
    s->members = s->live;
    s->reported = s->set = 0;
    for (int i = 0; i < s->o.shards; i++) s->arrived[i] = 0;
}

// ---------------------------------------------------------------- state
uint64_t step_set_live(const struct step_set *s) { return s->live; }
uint64_t step_set_members(const struct step_set *s) { return s->members; }
const struct train_state *step_set_state(const struct step_set *s) { return &s->state; }
