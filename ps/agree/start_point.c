#include "ps/agree/start_point.h"

#include <stdlib.h>
#include <string.h>

#include "ps/job/consistency.h"
#include "shared/core/error.h"
#include "shared/state/checkpoint_read.h"
#include "shared/state/manifest.h"

static uint64_t seal_of(const struct checkpoint *c) {
    uint64_t seal = 0;
    hex64_read(checkpoint_seal(c), &seal);
    return seal;
}

int start_point_check(const struct checkpoint *c, uint64_t seal) {
    if (seal_of(c) == seal) return 0;
    return fail("%s: is another checkpoint here than where the scheduler runs", checkpoint_path(c));
}

int64_t start_point_step(const struct config *c, const struct checkpoint *checkpoint) {
    const struct train_state *s = checkpoint_train(checkpoint);
    int64_t step = consistency_of(c).row->on_arrival ? s->step : train_state_place(s);
    return step / config_round(c);
}

int start_point_at(struct start_point *p, const struct config *config, const char *path) {
    *p = (struct start_point){.step = 0};
    if (strlen(path) >= sizeof p->checkpoint)
        return fail("%s: the path of a checkpoint that a star goes on from may have %zu characters", path,
                    sizeof p->checkpoint - 1);
    struct checkpoint *c = checkpoint_open(path);
    if (!c) return -1;
    p->step = start_point_step(config, c);
    p->seal = seal_of(c);
    memcpy(p->checkpoint, path, strlen(path) + 1);
    checkpoint_close(&c);
    return 0;
}

int start_point_find(struct start_point *p, const struct config *c, const char *run_dir) {
    char *why = NULL;
    *p = (struct start_point){.step = 0};
    if (!c->recovery.resume || c->recovery.resume_weights_only) return 0;
    char *path = checkpoint_resolve(c->recovery.resume, run_dir ? run_dir : c->out, &why);
    int rc = path ? start_point_at(p, c, path) : why ? fail("--resume %s: %s", c->recovery.resume, why) : 0;
    free(path);
    free(why);
    return rc;
}
