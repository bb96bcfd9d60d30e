#include "ps/scheduler/rescue_files.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>

#include "ps/job/timing.h"
#include "shared/core/background.h"
#include "shared/core/error.h"
#include "shared/report/metrics.h"
#include "shared/state/checkpoint_read.h"
#include "shared/state/identity.h"

struct rescue_files {
    const struct ps_role_options *o;
    const char **participants;  // (servers)
    struct rescue_job job;
    cJSON *identity;
    struct background *waiter;  // of the rescue in hand; NULL: there is none
    bool complete;              // once it is over, until the next epoch begins
    // Of the checkpoint that the epoch begins with:
    struct train_state begin;
    bool known;
    char why[WIRE_TEXT_MAX];
};

// ---------------------------------------------------------------- on the waiter's thread
static int complete(void *arg) {
    struct rescue_files *r = arg;
    const struct config *c = r->o->config;
    char *error = NULL;
    const struct checkpoint_commit commit = {.run_dir = r->o->dir,
                                             .life = r->job.life,
                                             .participants = r->participants,
                                             .count = c->ps.servers,
                                             .train = &r->job.train,
                                             .identity = r->identity,
                                             .dtype = dtype_name(c->dtype),
                                             .optimizer = c->optimizer.row->name,
                                             .states = c->optimizer.row->states,
                                             .stall_seconds = ps_deadline_s(c)};
    bool there = checkpoint_latest_step(r->o->dir) == r->job.train.step;
    int rc = there ? 0 : checkpoint_complete(&commit, background_flag(r->waiter), &error);
    // Worker 0 may have completed its own of the same step meanwhile.
    r->complete = rc == 0 || checkpoint_latest_step(r->o->dir) == r->job.train.step;
    if (rc == 0 && !there)
        checkpoint_rotate(r->o->dir, (int)c->recovery.checkpoint_keep,
                          c->recovery.checkpoint_keep_every * c->recovery.checkpoint_every);
    snprintf(r->why, sizeof r->why, "%s", error ? error : "");
    free(error);
    return 0;
}

static void end(struct rescue_files *r) {
    background_destroy(&r->waiter);
    cJSON_Delete(r->identity);
    r->identity = NULL;
}

// ---------------------------------------------------------------- the port
static int read_train(void *ctx, const char *path, struct train_state *out) {
    const struct rescue_files *r = ctx;
    (void)path;  // rescue_files_read was given the same
    *out = r->begin;
    return r->known ? 0 : -1;
}

// A worker knows of its data and device what a scheduler does not. How keys are cut is no part of a checkpoint.
static cJSON *identity_of(const struct rescue_files *r, const char *text) {
    struct identity *i = text ? identity_parse(text) : NULL;
    if (!i) i = identity_make(&(struct identity_source){r->o->config, r->o->layout, r->o->spec, NULL});
    cJSON *o = identity_json(i);
    identity_destroy(&i);
    cJSON_DeleteItemFromObjectCaseSensitive(o, "parameter_server.partitions");
    return o;
}

static int begin(void *ctx, const struct rescue_job *job) {
    struct rescue_files *r = ctx;
    end(r);
    r->job = *job;
    r->identity = identity_of(r, job->identity);
    if (!(r->waiter = background_create("completes a checkpoint", "scheduler"))) return -1;
    background_ask(r->waiter, complete, r, NULL);
    return 0;
}

static enum rescue_state state(void *ctx, char why[WIRE_TEXT_MAX]) {
    struct rescue_files *r = ctx;
    if (!background_done(r->waiter, 1)) return RESCUE_WAITS;
    snprintf(why, WIRE_TEXT_MAX, "%s", r->why);
    return r->complete ? RESCUE_DONE : RESCUE_FAILED;
}

void rescue_files_tidy(struct rescue_files *r) {
    const struct train_state *t = &r->job.train;
    const struct step_figures *f = &r->job.last;
    const struct config *c = r->o->config;
    const struct step_record line = {.step = t->step,
                                     .loss = f->loss,
                                     .grad_norm = f->norm,
                                     .lr = f->lr,
                                     .loss_scale = f->loss_scale,
                                     .tokens = c->train_batch * c->seq,
                                     .samples = t->samples,
                                     .seconds = f->seconds,
                                     .skipped = f->skipped};
    if (r->complete) metrics_mend(r->o->dir, &line);
    if (c->ps.replicate && r->o->dir) checkpoint_sweep(r->o->dir, CHECKPOINT_ALL, 0);
    r->complete = false;
}

void rescue_files_read(struct rescue_files *r, const char *path) {
    struct checkpoint *c = NULL;
    if (!r->o->config->ps.replicate || !r->o->dir) return;
    r->begin = (struct train_state){0};
    scaler_init(&r->begin.scaler, &r->o->config->scaler);
    r->known = !path[0] || (c = checkpoint_open(path));
    if (c) r->begin = *checkpoint_train(c);
    checkpoint_close(&c);
}

static void give_up(void *ctx) {
    const struct rescue_files *r = ctx;
    if (r->waiter) background_quit(r->waiter);
}

struct rescue_port rescue_files_port(struct rescue_files *r) {
    if (!r->o->config->ps.replicate || !r->o->dir) return (struct rescue_port){0};
    return (struct rescue_port){r, read_train, begin, state, give_up};
}

// ---------------------------------------------------------------- create, destroy
struct rescue_files *rescue_files_create(const struct ps_role_options *o) {
    struct rescue_files *r = xcalloc(1, sizeof *r);
    int servers = o->config->ps.servers;
    r->o = o;
    r->participants = xcalloc((unsigned long)servers, sizeof *r->participants);
    for (int s = 0; s < servers; s++) r->participants[s] = xasprintf("server-%d", s);
    return r;
}

void rescue_files_destroy(struct rescue_files **at) {
    struct rescue_files *r = *at;
    if (!r) return;
    give_up(r);
    end(r);
    for (int s = 0; s < r->o->config->ps.servers; s++) free((char *)r->participants[s]);
    free(r->participants);
    free(r);
    *at = NULL;
}
