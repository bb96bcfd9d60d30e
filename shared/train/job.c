#include "shared/train/job.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/core/error.h"
#include "shared/core/file.h"
#include "shared/core/system.h"
#include "shared/data/data.h"
#include "shared/hf/hf_adapter.h"
#include "shared/hf/hf_dir.h"
#include "shared/hf/presets.h"
#include "shared/model/layout.h"
#include "shared/report/run_dir.h"
#include "shared/report/run_state.h"
#include "shared/state/checkpoint.h"

// ---------------------------------------------------------------- the checkpoint that a run resumes from
static bool latest(const struct config *c) {
    return c->recovery.resume && !strcmp(c->recovery.resume, "latest");
}

int resume_find(const struct config *c, bool verbose, char **path) {
    char *why = NULL;
    *path = c->recovery.resume ? checkpoint_resolve(c->recovery.resume, c->out, &why) : NULL;
    int rc = why ? fail("--resume: %s", why) : 0;
    free(why);
    if (!rc && *path && c->recovery.resume_weights_only && resume_is_inside(*path, c->out))
        rc = fail(
            "--resume-weights-only begins a new run: choose another --out than %s, where the checkpoint is",
            c->out);
    if (!rc && verbose && latest(c) && !*path)
        info("--resume latest: %s has no checkpoint yet: training begins with the first step", c->out);
    if (rc) free(*path);
    if (rc) *path = NULL;
    return rc;
}

// Tests the path RUN/checkpoints/step-N; the checkpoint itself may have been deleted.
bool resume_is_inside(const char *path, const char *dir) {
    if (!path || !dir) return false;
    char *run = xstrdup(path);
    for (int i = 0; i < 2 && strrchr(run, '/'); i++) *strrchr(run, '/') = 0;
    bool own = same_file(run, dir);
    free(run);
    return own;
}

// Compares the checkpoint's run with this one: fails for another run, prints which settings change the last bits.
static int compare(const struct checkpoint *ck, const struct identity_source *s, bool verbose) {
    struct identity *ours = identity_make(s), *theirs = identity_from_json(checkpoint_identity_json(ck));
    struct identity_side a = {"the checkpoint", theirs}, b = {"this run", ours};
    char *other = identity_difference(a, b, IDENTITY_TRAJECTORY);
    char *bits = other ? NULL : identity_difference(a, b, IDENTITY_BITS);
    int rc = 0;
    if (other)
        rc = fail(
            "--resume: %s is of another run: %s. --resume-weights-only begins a new run with its weights",
            checkpoint_path(ck), other);
    else if (bits && verbose)
        info("--resume: %s; so the last bits will differ from those of an undisturbed run", bits);
    free(other);
    free(bits);
    identity_destroy(&ours);
    identity_destroy(&theirs);
    return rc;
}

struct checkpoint *resume_open(const char *path, const struct identity_source *s, bool verbose) {
    const struct config *c = s->config;
    struct checkpoint *ck = checkpoint_open(path);
    char *older = !ck && verbose ? checkpoint_older(path) : NULL;
    if (older) info("--resume: the one before it: --resume %s", older);
    free(older);
    if (!ck) return NULL;
    if (checkpoint_is_weights(ck)) {
        fail(
            "--resume: %s is a snapshot of the weights, which starring evaluate reads: a run cannot resume from it",
            path);
        checkpoint_close(&ck);
        return NULL;
    }
    bool whole = !c->recovery.resume_weights_only;
    int rc = whole ? compare(ck, s, verbose) : 0;
    if (!rc) rc = checkpoint_fits(ck, s->layout);
    int64_t step = train_state_steps(checkpoint_train(ck));
    if (!rc && whole && step > c->steps)
        rc = fail("--resume: %s is the state after step %lld, and --steps is %lld: give more steps", path,
                  (long long)step, (long long)c->steps);
    if (rc) checkpoint_close(&ck);
    return ck;
}

// Continuing in this directory deletes the later checkpoints, or the figures of a complete run. Verifies the
// whole checkpoint before that.
static int verify_own(const char *path, const char *dir) {
    struct run_state s;
    run_state_read(dir, &s);
    struct checkpoint *ck = checkpoint_open(path);
    if (!ck) return -1;
    bool costs = s.phase == RUN_COMPLETE || checkpoint_latest_step(dir) > checkpoint_train(ck)->step;
    int rc = costs ? checkpoint_verify(ck) : 0;
    checkpoint_close(&ck);
    return rc;
}

int resume_take_dir(const struct config *c, const char *path, const char *dir, bool force) {
    if (resume_is_inside(path, dir)) return verify_own(path, dir) ? -1 : run_dir_resume(dir, c);
    return latest(c) && !path ? run_dir_restart(dir, c) : run_dir_take(dir, c, force);
}

// ---------------------------------------------------------------- open and close
// Opens weights and data. known: the model is known.
static int open_files(struct job *j, bool known) {
    const struct config *c = j->config;
    if (known && hf_has_weights(c->model)) j->weights_in = c->model;
    // Errors in the data are reported together with errors in the model.
    struct data_options d = {.path = c->data,
                             .val_path = c->val_data,
                             .tokenizer = c->tokenizer,
                             .model = known ? c->model : NULL,
                             .val_fraction = c->val_fraction,
                             .vocab = known ? j->spec.vocab : 0,
                             .seq = c->seq,
                             .whole = c->documents == DOCUMENTS_WHOLE};
    j->data = data_open(&d);
    return j->data && known ? 0 : -1;
}

int job_spec(const struct config *c, struct model_spec *s) {
    if (model_spec_load(c->model, s) || model_spec_check(s)) return -1;
    if (!c->lora.r) return 0;
    struct lora_spec asked = {.r = c->lora.r, .alpha = c->lora.alpha}, found = s->lora;
    if (hf_lora_targets(s, c->lora.targets, "lora.targets", &asked)) return -1;
    s->lora = asked;
    if (!found.r || !memcmp(&found, &asked, sizeof asked)) return 0;
    const char *key = found.r != asked.r           ? "lora.r"
                      : found.alpha != asked.alpha ? "lora.alpha"
                                                   : "lora.targets";
    return fail(
        "%s: --model %s is an adapter that has another (its r is %d, its alpha %g): leave the section lora out",
        key, c->model, found.r, (double)found.alpha);
}

// A run's files replace those of the last run in --out, and its weights those in RUN/weights: what it reads must not be
// there.
static int keep_apart(const struct config *c, const char *read) {
    char *weights = c->out ? xasprintf("%s/weights", c->out) : NULL;
    char *theirs = read ? realpath(read, NULL) : NULL, *ours = weights ? realpath(weights, NULL) : NULL;
    size_t n = ours ? strlen(ours) : 0;
    bool inside = theirs && ours && !strncmp(theirs, ours, n) && (!theirs[n] || theirs[n] == '/');
    int rc =
        inside
            ? fail(
                  "--out %s: the run begins with %s, which its own weights would replace: choose another --out",
                  c->out, theirs)
            : 0;
    free(weights);
    free(theirs);
    free(ours);
    return rc;
}

static int keep_files(const struct config *c) {
    char *base = c->model && hf_is_adapter(c->model) ? hf_adapter_base(c->model) : NULL;
    int rc = keep_apart(c, c->model) || keep_apart(c, base) || keep_apart(c, c->tokenizer) ? -1 : 0;
    free(base);
    return rc;
}

int job_open(struct job *j, const struct config *c, bool predict_only) {
    j->config = c;
    bool known = !job_spec(c, &j->spec) && !model_spec_check_seq(&j->spec, c->seq) && !keep_files(c);
    if (known) j->layout = model_layout_create(&j->spec, c->workers);
    if (predict_only || (known && !j->layout)) return j->layout ? 0 : -1;
    return open_files(j, known);
}

bool job_opens(const struct config *c, const struct job *predicted) {
    struct job j = {.ranks_here = 1};
    error_quiet(QUIET_ALL);
    if (predicted) j = (struct job){.config = c, .spec = predicted->spec, .layout = predicted->layout};
    bool opens = !(predicted ? open_files(&j, true) : job_open(&j, c, false));
    error_quiet(QUIET_NOT);
    if (predicted) j.layout = NULL;
    job_close(&j);
    return opens;
}

struct identity_source job_identity(const struct job *j) {
    return (struct identity_source){j->config, j->layout, &j->spec, j->data};
}

void job_resume_clear(struct job *j) {
    free(j->resume);
    j->resume = NULL;
    j->resume_found = false;
}

int job_resume(struct job *j, bool verbose) {
    job_resume_clear(j);
    if (resume_find(j->config, verbose, &j->resume)) return -1;
    j->resume_found = true;
    if (!j->resume) return 0;
    struct identity_source source = job_identity(j);
    struct checkpoint *ck = resume_open(j->resume, &source, verbose);
    if (!ck) return -1;
    j->resume_step = checkpoint_train(ck)->step;
    j->resume_step_of_run = train_state_steps(checkpoint_train(ck));
    checkpoint_close(&ck);
    return 0;
}

void job_close(struct job *j) {
    free(j->resume);
    j->resume = NULL;
    if (j->data) data_close(&j->data);
    if (j->layout) layout_destroy(&j->layout);
}

int job_threads(const struct job *j) {
    if (j->config->threads > 0) return j->config->threads;
    return processors_share(j->ranks_here, j->bound);
}
