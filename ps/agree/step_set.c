#include "ps/agree/step_set.h"

#include <math.h>
#include <stdlib.h>

#include "shared/core/error.h"

struct step_set {
    struct step_set_options o;
    struct train_state state;  // the state before the open step
    uint64_t live, joining;
    uint64_t members, reported, set;  // workers of the open step
    uint64_t *arrived;                // (shards)
    bool enough;                      // as many workers as needed are complete, since the time enough_s
    double enough_s;
};

void step_set_begin(struct step_set *s, const struct train_state *state) { s->state = *state; }

struct step_set *step_set_create(const struct step_set_options *o) {
    struct step_set *s = xcalloc(1, sizeof *s);
    s->o = *o;
    s->live = s->members = elastic_all(o->workers);
    s->arrived = xcalloc((unsigned long)o->shards + 1, sizeof *s->arrived);
    step_set_begin(s, &o->start);
    return s;
}

void step_set_destroy(struct step_set **s) {
    if (!*s) return;
    free((*s)->arrived);
    free(*s);
    *s = NULL;
}

// ---------------------------------------------------------------- workers
bool step_set_can_lose(const struct step_set *s, int worker) {
    uint64_t rest = s->live & ~elastic_bit(worker);
    return worker > 0 && elastic_count(rest) >= s->o.min;
}

void step_set_lost(struct step_set *s, int worker) {
    s->live &= ~elastic_bit(worker);
    s->joining &= ~elastic_bit(worker);
}

void step_set_join(struct step_set *s, int worker) { s->joining |= elastic_bit(worker); }

// ---------------------------------------------------------------- the open step
void step_set_reported(struct step_set *s, int worker) { s->reported |= elastic_bit(worker); }

void step_set_arrived(struct step_set *s, int shard, uint64_t workers) { s->arrived[shard] |= workers; }

bool step_set_fix(struct step_set *s, double now) {
    uint64_t complete = s->members & s->reported, set = 0;
    for (int i = 0; i < s->o.shards; i++) complete &= s->arrived[i];
    bool all = !(s->members & s->live & ~complete);
    if (s->set || !complete) return false;
    if (s->o.recorded) {
        for (int w = 0; w < s->o.workers; w++)
            if (s->o.recorded(s->o.ctx, w, s->state.step) >= 0) set |= elastic_bit(w);
        s->set = set & ~complete ? 0 : set;
        return s->set != 0;
    }
    if (!s->enough) s->enough_s = now;
    s->enough = s->o.needs && elastic_count(complete) >= s->o.needs;
    if (!all && !(s->enough && now - s->enough_s >= s->o.grace_s)) return false;
    // Takes exactly as many of the complete workers as a step needs, starting with worker `step` mod N.
    for (int i = 0, n = s->o.workers; i < n && elastic_count(set) < s->o.needs; i++)
        set |= complete & elastic_bit((int)((s->state.step + i) % n));
    s->set = s->o.exact ? set : complete;
    return true;
}

bool step_set_in_grace(const struct step_set *s) { return s->enough && !s->set; }

uint64_t step_set_fixed(const struct step_set *s) { return s->set; }
uint64_t step_set_members(const struct step_set *s) { return s->members; }

void step_set_close(struct step_set *s, bool skipped, bool admits) {
    struct train_state *x = &s->state;
    // At the minimum scale the workers end the run, with an error that names worker and tensor.
    if (!skipped || !scaler_at_end(&x->scaler, &s->o.scaler))
        scaler_update(&x->scaler, &s->o.scaler, skipped);
    x->step++;
    x->handed_out += s->o.own * elastic_count(s->members);
    x->skipped_in_a_row = skipped ? x->skipped_in_a_row + 1 : 0;
    if (!skipped) x->updates++;
    if (!skipped) x->samples += s->o.own * elastic_count(s->set);
    if (!skipped) x->unapplied += s->o.own * elastic_count(s->members & s->live & ~s->set);
    if (admits) s->live |= s->joining;
    if (admits) s->joining = 0;
    s->members = s->live;
    s->reported = s->set = 0;
    s->enough = false;
    for (int i = 0; i < s->o.shards; i++) s->arrived[i] = 0;
}

// ---------------------------------------------------------------- state
uint64_t step_set_joining(const struct step_set *s) { return s->joining; }
uint64_t step_set_live(const struct step_set *s) { return s->live; }
const struct train_state *step_set_state(const struct step_set *s) { return &s->state; }

// ---------------------------------------------------------------- openings
enum {
    HANDED_OUT,
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
    OPENING_VALUES
};

// Whole numbers below 2^53 are exact as doubles.
void opening_write(const struct step_opening *d, struct wire_header *h) {
    const struct train_state *x = &d->state;
    double *v = h->values;
    h->mask = d->members;
    h->count = OPENING_VALUES;
    v[HANDED_OUT] = (double)x->handed_out;
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

// Whether opening_write can have written value i: a whole number, below 2^31 if an int holds it.
static bool is_value(int i, double x) {
    bool is_int = i == CONTRIBUTORS || i == SKIPPED || i == HYSTERESIS;
    return x >= -1 && x < (is_int ? 0x1p31 : 0x1p53) && (i == SCALE || x == floor(x));
}

int opening_read(const struct wire_header *h, struct step_opening *d) {
    const double *v = h->values;
    if (h->count != OPENING_VALUES) return -1;
    for (int i = 0; i < OPENING_VALUES; i++)
        if (!is_value(i, v[i])) return -1;
    *d = (struct step_opening){.members = h->mask,
                               .contributors = (int)v[CONTRIBUTORS],
                               .tokens = (int64_t)v[TOKENS],
                               .state = {.step = h->step,
                                         .updates = (int64_t)v[UPDATES],
                                         .samples = (int64_t)v[SAMPLES],
                                         .unapplied = (int64_t)v[UNAPPLIED],
                                         .handed_out = (int64_t)v[HANDED_OUT],
                                         .skipped_in_a_row = (int)v[SKIPPED],
                                         .scaler = {.scale = v[SCALE],
                                                    .iter = (int64_t)v[ITERATION],
                                                    .last_overflow = (int64_t)v[OVERFLOW_AT],
                                                    .hysteresis_left = (int)v[HYSTERESIS]}}};
    return 0;
}
