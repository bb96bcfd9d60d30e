// Checkpoints, resuming, restarts: what excludes what.
#include <stdio.h>
#include <string.h>

#include "shared/config/config_internal.h"
#include "shared/core/error.h"
#include "shared/core/message_fault.h"
#include "shared/core/text.h"
#include "shared/core/topology_row.h"

int config_elastic(const char *text, int *min, int *max) {
    const char *behind = text_count(text, min);
    behind = behind && *behind == ':' ? text_count(behind + 1, max) : NULL;
    return behind && !*behind && *min >= 1 && *max >= *min ? 0 : -1;
}

// Where workers come and go, what is written of all of them together would be torn, and a replica's sums would be those
// of a step that nobody has fixed.
static int check_elastic(struct reading *r) {
    const struct config *c = &r->d->c;
    struct recovery_config *v = &r->d->c.recovery;
    char room[128];
    if (!v->elastic) return 0;
    const char *from = config_origin(r, "recovery.elastic", room);
    if (config_elastic(v->elastic, &v->elastic_min, &v->elastic_max) != 0)
        return fail("%s: recovery.elastic: expected MIN:MAX with 1 <= MIN <= MAX, as in 2:8, got \"%s\"",
                    from, v->elastic);
    if (!c->row->messages)
        return fail("%s: recovery.elastic: topology %s needs all of its ranks: use ps:sync or ps:async", from,
                    c->topology);
    if (v->elastic_max != c->workers)
        return fail(
            "%s: recovery.elastic %s: MAX is the number of workers that the run is laid out for: make it "
            "%d, or workers %d",
            from, v->elastic, c->workers, v->elastic_max);
    if (v->elastic_max > CONFIG_ELASTIC_MAX)
        return fail("%s: recovery.elastic %s: at most %d workers can come and go", from, v->elastic,
                    CONFIG_ELASTIC_MAX);
    if (c->ps.replicate || c->ps.record_arrivals || c->ps.replay_arrivals)
        return fail(
            "%s: recovery.elastic: workers do not come and go with parameter_server.%s: leave one of them out",
            from,
            c->ps.replicate         ? "replicate"
            : c->ps.record_arrivals ? "record_arrivals"
                                    : "replay_arrivals");
    return 0;
}

// Where a run goes on from, and where it is: "latest" is the latest of --out.
static int check_resume(struct reading *r) {
    const struct config *c = &r->d->c;
    const struct recovery_config *v = &c->recovery;
    char from[128];
    if (v->resume_weights_only && !v->resume)
        return fail("%s: recovery.resume_weights_only: of which checkpoint? Give --resume too",
                    config_origin(r, "recovery.resume_weights_only", from));
    if (!v->resume || strcmp(v->resume, "latest") != 0) return 0;
    if (!c->out)
        return fail("%s: recovery.resume: \"latest\" is the latest checkpoint in --out: give --out DIR too",
                    config_origin(r, "recovery.resume", from));
    if (v->resume_weights_only)
        return fail(
            "%s: recovery.resume: \"latest\" goes on in --out, and --resume-weights-only begins anew: name the "
            "checkpoint or the run directory",
            config_origin(r, "recovery.resume", from));
    return 0;
}

#define KEPT_UNASKED 2  // recovery.checkpoint_keep unless given

// What says how checkpoints are kept, where none are.
static int check_kept(struct reading *r) {
    const struct recovery_config *v = &r->d->c.recovery;
    char from[128];
    const char *key = v->checkpoint_background             ? "recovery.checkpoint_background"
                      : v->checkpoint_keep_every           ? "recovery.checkpoint_keep_every"
                      : v->checkpoint_keep != KEPT_UNASKED ? "recovery.checkpoint_keep"
                                                           : NULL;
    if (v->checkpoint_every > 0 || !key) return 0;
    return fail("%s: %s: no checkpoints are asked for: give --checkpoint-every K too",
                config_origin(r, key, from), key);
}

static int check_fault(struct reading *r) {
    const struct config *c = &r->d->c;
    struct message_fault fault;
    char from[128], why[FAULT_WHY_MAX];
    if (!c->fault) return 0;
    if (!c->row->messages)
        return fail(
            "%s: trouble.fault: it is the messages of a star that it concerns: use ps:sync or ps:async",
            config_origin(r, "trouble.fault", from));
    if (message_fault_parse(c->fault, c->seed, &fault, why) != 0)
        return fail("%s: trouble.fault: %s", config_origin(r, "trouble.fault", from), why);
    return 0;
}

int config_check_recovery(struct reading *r) {
    return check_fault(r) || check_elastic(r) || check_kept(r) || check_resume(r) ? -1 : 0;
}
