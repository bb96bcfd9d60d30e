#include "ps/scheduler/epoch_start.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ps/agree/start_point.h"
#include "ps/job/consistency.h"
#include "shared/core/error.h"
#include "shared/launch/away.h"
#include "shared/launch/lives.h"
#include "shared/report/metrics.h"
#include "shared/report/run_state.h"
#include "shared/state/checkpoint.h"
#include "shared/train/job.h"

// A launcher says whether it has started this scheduler again. One that was started by hand goes on with a job whose
// worker 0 still stands in the run directory's state.
static bool goes_on(const struct ps_role_options *o) {
    struct run_state state;
    if (o->life) return o->life > 1;
    run_state_read(o->dir, &state);
    return state.phase == RUN_RUNNING || state.phase == RUN_DEAD;
}

void epoch_first(const struct ps_role_options *o, const char *checkpoint, struct epoch_options *out) {
    out->restarts = o->config->recovery.restart;
    if (!out->restarts || !o->dir) return;
    bool again = goes_on(o), by_hand = !o->life;
    if (by_hand && !again && !resume_is_own(checkpoint, o->dir)) lives_forget(o->dir);
    struct life last = lives_last(o->dir);
    out->start = o->start ? o->start : again && last.epoch ? last.start : last.start + 1;
    if (!again || !last.epoch || last.start != out->start) return;
    out->first = last.epoch + 1;
    out->used = last.restarts + 1;
    out->why = "the scheduler was started again";
}

static void say(const struct ps_role_options *o, const struct epochs *e, const struct epoch_start *at,
                const struct life *life) {
    char again[48] = "";
    if (o->config->quiet || !e->why[0]) return;
    if (life->counted)
        snprintf(again, sizeof again, "; %lld step%s done again", (long long)life->lost,
                 life->lost == 1 ? " is" : "s are");
    if (at->checkpoint[0])
        info("epoch %u goes on behind step %lld (%s)%s: %s", e->epoch, (long long)at->step, at->checkpoint,
             again, e->why);
    else
        info("epoch %u begins at the first step, as there is no checkpoint%s: %s", e->epoch, again, e->why);
}

static int take_latest(const struct ps_role_options *o, struct epoch_start *out) {
    struct start_point p;
    char *path = checkpoint_latest(o->dir);
    int rc = path ? start_point_at(&p, o->config, path) : 0;
    if (path && !rc) {
        memcpy(out->checkpoint, p.checkpoint, sizeof out->checkpoint);
        out->step = p.step;
        out->seal = p.seal;
    }
    free(path);
    return rc;
}

int epoch_starts(void *ctx, const struct epochs *e, struct epoch_start *out, char error[WIRE_TEXT_MAX]) {
    const struct ps_role_options *o = ctx;
    // Nobody of an earlier epoch writes any more: all have begun anew, and logged in.
    if (e->why[0] && o->dir && take_latest(o, out) != 0) return core_fail(error, "%s", error_last());
    // Of another run, whose directory this one takes, nothing stays.
    int64_t stays = resume_is_own(out->checkpoint, o->dir) ? out->step : 0;
    if (o->dir && ps_elastic(o->config)) away_cut(o->dir, stays);
    // Of a scheduler's own death its records tell: nobody has cut them yet.
    bool later = e->why[0] || stays > 0;
    int64_t reached = e->reached < 0 && later && o->dir ? metrics_last_step(o->dir) : e->reached;
    struct life life = {.start = e->o.start,
                        .epoch = e->epoch,
                        .job = e->job,
                        .restarts = e->used,
                        .checkpoint = out->checkpoint,
                        .why = e->why,
                        .counted = reached >= 0,
                        .lost = reached > out->step ? reached - out->step : 0};
    say(o, e, out, &life);
    if (o->dir && e->o.restarts) lives_add(o->dir, &life);
    return 0;
}
