#include "shared/train/resume.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/core/error.h"
#include "shared/core/path.h"
#include "shared/report/run_dir.h"
#include "shared/report/run_state.h"
#include "shared/state/checkpoint.h"

static bool latest(const struct config *c) {
    return c->recovery.resume && !strcmp(c->recovery.resume, "latest");
}

int resume_find(const struct config *c, bool says, char **path) {
    char *why = NULL;
    *path = c->recovery.resume ? checkpoint_resolve(c->recovery.resume, c->out, &why) : NULL;
    int rc = why ? fail("--resume: %s", why) : 0;
    free(why);
    if (!rc && *path && c->recovery.resume_weights_only && resume_is_own(*path, c->out))
        rc = fail(
            "--resume-weights-only begins a new run: choose another --out than %s, where the checkpoint is",
            c->out);
    if (!rc && says && latest(c) && !*path)
        info("--resume latest: %s has no checkpoint yet: training begins with the first step", c->out);
    if (rc) free(*path);
    if (rc) *path = NULL;
    return rc;
}

// RUN/checkpoints/step-N, which may have gone meanwhile.
bool resume_is_own(const char *path, const char *dir) {
    if (!path || !dir) return false;
    char *run = xstrdup(path);
    for (int i = 0; i < 2 && strrchr(run, '/'); i++) *strrchr(run, '/') = 0;
    bool own = same_file(run, dir);
    free(run);
    return own;
}

// Another run's, or the same with other settings.
static int compare(const struct checkpoint *ck, const struct identity_source *s, bool says) {
    struct identity *here = identity_make(s), *there = identity_from_json(checkpoint_identity_json(ck));
    struct identity_side a = {"the checkpoint", there}, b = {"this run", here};
    char *other = identity_difference(a, b, IDENTITY_TRAJECTORY);
    char *bits = other ? NULL : identity_difference(a, b, IDENTITY_BITS);
    int rc = 0;
    if (other)
        rc = fail(
            "--resume: %s is of another run: %s. --resume-weights-only begins a new run with its weights",
            checkpoint_path(ck), other);
    else if (bits && says)
        info("--resume: %s; so the last bits will differ from those of an undisturbed run", bits);
    free(other);
    free(bits);
    identity_destroy(&here);
    identity_destroy(&there);
    return rc;
}

struct checkpoint *resume_open(const char *path, const struct identity_source *s, bool says) {
    const struct config *c = s->config;
    struct checkpoint *ck = checkpoint_open(path);
    char *older = !ck && says ? checkpoint_older(path) : NULL;
    if (older) info("--resume: the one before it: --resume %s", older);
    free(older);
    if (!ck) return NULL;
    bool whole = !c->recovery.resume_weights_only;
    int rc = whole ? compare(ck, s, says) : 0;
    if (!rc) rc = checkpoint_fits(ck, s->layout);
    int64_t step = train_state_place(checkpoint_train(ck));
    if (!rc && whole && step > c->steps)
        rc = fail("--resume: %s is behind step %lld, and --steps is %lld: there is no way back", path,
                  (long long)step, (long long)c->steps);
    if (rc) checkpoint_close(&ck);
    return ck;
}

// What came after the checkpoint goes, or the figures of a complete run: not before all of it has been read once.
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
    if (resume_is_own(path, dir)) return verify_own(path, dir) ? -1 : run_dir_continue(dir, c);
    return latest(c) && !path ? run_dir_begin_again(dir, c) : run_dir_take(dir, c, force);
}
