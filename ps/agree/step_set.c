#include "ps/agree/step_set.h"

#include <math.h>
#include <stdlib.h>

#include "shared/core/error.h"

struct open_step {
    uint64_t members, reported, set;
    uint64_t *arrived;  // (shards)
    bool enough;        // have come, since:
    double enough_s;
};

struct step_set {
    struct step_set_options o;
    struct train_state state;  // before the newest open step
    uint64_t live, joining;
    struct open_step *open;  // (1 + lead)
};

static struct open_step *at(const struct step_set *s, int64_t step) {
    return &s->open[step % (1 + s->o.lead)];
}

// All workers belong to the steps that are open at first.
void step_set_begin(struct step_set *s, const struct train_state *state) {
    s->state = *state;
    s->state.step = s->o.start.step + s->o.lead;
    s->state.dealt += s->o.lead * s->o.own * s->o.workers;
}

struct step_set *step_set_create(const struct step_set_options *o) {
    struct step_set *s = xcalloc(1, sizeof *s);
    s->o = *o;
    s->live = elastic_all(o->workers);
    s->open = xcalloc(1 + (unsigned long)o->lead, sizeof *s->open);
    for (int i = 0; i <= o->lead; i++) {
        s->open[i].members = s->live;
        s->open[i].arrived = xcalloc((unsigned long)o->shards + 1, sizeof(uint64_t));
    }
    step_set_begin(s, &o->start);
    return s;
}

void step_set_destroy(struct step_set **s) {
    if (!*s) return;
    for (int i = 0; i <= (*s)->o.lead; i++) free((*s)->open[i].arrived);
    free((*s)->open);
    free(*s);
    *s = NULL;
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

// ---------------------------------------------------------------- an open step
void step_set_reported(struct step_set *s, int64_t step, int worker) {
    at(s, step)->reported |= elastic_bit(worker);
}

void step_set_arrived(struct step_set *s, int64_t step, int shard, uint64_t workers) {
    at(s, step)->arrived[shard] |= workers;
}

// As many of them as a step needs, from worker `step` mod N on.
static uint64_t first_of(const struct step_set *s, uint64_t complete, int64_t step) {
    uint64_t set = 0;
    for (int i = 0, n = s->o.workers; i < n && elastic_count(set) < s->o.needs; i++)
        set |= complete & elastic_bit((int)((step + i) % n));
    return set;
}

static uint64_t recorded_set(const struct step_set *s, int64_t step) {
    uint64_t set = 0;
    for (int w = 0; w < s->o.workers; w++)
        if (s->o.recorded(s->o.ctx, w, step) >= 0) set |= elastic_bit(w);
    return set;
}

bool step_set_fix(struct step_set *s, int64_t step, double now) {
    struct open_step *x = at(s, step);
    uint64_t complete = x->members & x->reported;
    for (int i = 0; i < s->o.shards; i++) complete &= x->arrived[i];
    bool all = !(x->members & s->live & ~complete);
    if (x->set || !complete) return false;
    if (s->o.recorded) {
        uint64_t set = recorded_set(s, step);
        x->set = set & ~complete ? 0 : set;
        return x->set != 0;
    }
    if (!x->enough) x->enough_s = now;
    x->enough = s->o.needs && elastic_count(complete) >= s->o.needs;
    if (!all && !(x->enough && now - x->enough_s >= s->o.grace_s)) return false;
    x->set = s->o.exact ? first_of(s, complete, step) : complete;
    return true;
}

bool step_set_graces(const struct step_set *s) {
    for (int i = 0; i <= s->o.lead; i++)
        if (s->open[i].enough && !s->open[i].set) return true;
    return false;
}

uint64_t step_set_fixed(const struct step_set *s, int64_t step) { return at(s, step)->set; }
uint64_t step_set_members(const struct step_set *s, int64_t step) { return at(s, step)->members; }

void step_set_close(struct step_set *s, bool skipped, bool admits) {
    struct train_state *x = &s->state;
    struct open_step *newest = at(s, x->step), *closed = at(s, x->step - s->o.lead);
    // At its end it is the workers that end the run: they know whose gradient it was, and of which tensor.
    if (!skipped || !scaler_at_end(&x->scaler, &s->o.scaler))
        scaler_update(&x->scaler, &s->o.scaler, skipped);
    x->step++;
    x->dealt += s->o.own * elastic_count(newest->members);
    x->skipped_in_a_row = skipped ? x->skipped_in_a_row + 1 : 0;
    if (!skipped) x->updates++;
    if (!skipped) x->samples += s->o.own * elastic_count(closed->set);
    if (!skipped) x->unapplied += s->o.own * elastic_count(closed->members & s->live & ~closed->set);
    if (admits) step_set_admit(s);
    closed->members = s->live;
    closed->reported = closed->set = 0;
    closed->enough = false;
    for (int i = 0; i < s->o.shards; i++) closed->arrived[i] = 0;
}

// ---------------------------------------------------------------- state
uint64_t step_set_joining(const struct step_set *s) { return s->joining; }
uint64_t step_set_live(const struct step_set *s) { return s->live; }
const struct train_state *step_set_state(const struct step_set *s) { return &s->state; }

// ---------------------------------------------------------------- openings
enum {
    DEALT,
    SAMPLES,
    UNAPPLIED,
    UPDATES,
    CONTRIBUTORS,
    TOKENS,
    SKIPPED,
    SCALE,
    ITERATION,
    OVERFLOW_AT,
    HYSTERESIS,
    DEAL_VALUES
};

// Whole numbers below 2^53 are themselves as doubles.
void opening_write(const struct step_opening *d, struct wire_header *h) {
    const struct train_state *x = &d->state;
    double *v = h->values;
    h->mask = d->members;
    h->count = DEAL_VALUES;
    v[DEALT] = (double)x->dealt;
    v[SAMPLES] = (double)x->samples;
    v[UNAPPLIED] = (double)x->unapplied;
    v[UPDATES] = (double)x->updates;
    v[CONTRIBUTORS] = d->contributors;
    v[TOKENS] = (double)d->tokens;
    v[SKIPPED] = x->skipped_in_a_row;
    v[SCALE] = x->scaler.scale;
    v[ITERATION] = (double)x->scaler.iter;
    v[OVERFLOW_AT] = (double)x->scaler.last_overflow;
    v[HYSTERESIS] = x->scaler.hysteresis_left;
}

// Whether value i can be what opening_write makes of an opening: a whole number, below 2^31 where an int holds it.
static bool is_value(int i, double x) {
    bool is_int = i == CONTRIBUTORS || i == SKIPPED || i == HYSTERESIS;
    return x >= -1 && x < (is_int ? 0x1p31 : 0x1p53) && (i == SCALE || x == floor(x));
}

int opening_read(const struct wire_header *h, struct step_opening *d) {
    const double *v = h->values;
    if (h->count != DEAL_VALUES) return -1;
    for (int i = 0; i < DEAL_VALUES; i++)
        if (!is_value(i, v[i])) return -1;
    *d = (struct step_opening){.members = h->mask,
                               .contributors = (int)v[CONTRIBUTORS],
                               .tokens = (int64_t)v[TOKENS],
                               .state = {.step = h->step,
                                         .updates = (int64_t)v[UPDATES],
                                         .samples = (int64_t)v[SAMPLES],
                                         .unapplied = (int64_t)v[UNAPPLIED],
                                         .dealt = (int64_t)v[DEALT],
                                         .skipped_in_a_row = (int)v[SKIPPED],
                                         .scaler = {.scale = v[SCALE],
                                                    .iter = (int64_t)v[ITERATION],
                                                    .last_overflow = (int64_t)v[OVERFLOW_AT],
                                                    .hysteresis_left = (int)v[HYSTERESIS]}}};
    return 0;
}
