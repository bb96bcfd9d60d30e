// Where a job begins, as its scheduler finds it, and tells all other roles.
#ifndef STARRING_PS_AGREE_START_POINT_H
#define STARRING_PS_AGREE_START_POINT_H

#include "ps/net/wire.h"
#include "shared/config/config.h"

struct start_point {
    char checkpoint[WIRE_TEXT_MAX];  // absolute path; "": the beginning
    int64_t step;                    // steps done
    uint64_t seal;  // checkpoint_seal as a number: another checkpoint of that name has another
};
// Whether what this process finds under the name is what the scheduler has found: 0, or -1 after logging.
struct checkpoint;
int start_point_check(const struct checkpoint *c, uint64_t seal);
// The checkpoint that --resume names, latest being the latest of run_dir (NULL: of config->out). With --resume-weights-only the job
// begins at the beginning: workers take the weights from there by themselves. 0, or -1 after logging.
int start_point_find(struct start_point *p, const struct config *c, const char *run_dir);
// This checkpoint. 0, or -1 after logging.
int start_point_at(struct start_point *p, const struct config *c, const char *path);
// Behind which step a job goes on from it: where workers share a budget, worker 0's own count.
int64_t start_point_step(const struct config *c, const struct checkpoint *checkpoint);

#endif
