#include "shared/launch/evaluate_dir.h"

#include <stdlib.h>

#include "shared/core/error.h"
#include "shared/device/device_choice.h"
#include "shared/train/session.h"

static enum evaluated evaluate_as(struct config *c, const struct evaluate_dir_options *o) {
    struct job job = {0};
    enum evaluated rc = EVALUATE_FAILED;
    device_resolve(c);
    if (device_backend(c) && !cpu_kernel_choose(c) && !job_open(&job, c, false))
        rc = evaluate_run(&(struct evaluate_options){.config = c,
                                                     .spec = &job.spec,
                                                     .data = job.data,
                                                     .dir = o->dir,
                                                     .keep = o->keep || c->keep_snapshots,
                                                     .stop = o->stop,
                                                     .say = o->say});
    job_close(&job);
    return rc;
}

enum evaluated evaluate_dir(const struct evaluate_dir_options *o) {
    if (!evaluate_waiting(o->dir)) return EVALUATE_DONE;
    char *path = xasprintf("%s/config.json", o->dir);
    struct config *c = config_load(o->topologies, path, NULL, 0);
    enum evaluated rc = c ? evaluate_as(c, o) : EVALUATE_FAILED;
    config_destroy(&c);
    free(path);
    return rc;
}
