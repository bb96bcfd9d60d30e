// DeepSpeed's monitors that write files (its monitor/*.py): rank 0 adds a point to each curve after every step.
//
//     Train/Samples/train_loss    mean over the global batch
//     Train/Samples/lr            of the step's update
//     Train/Samples/loss_scale    of the step, where dtype is fp16
//
// The event file has all other values of a step's line in metrics.jsonl as well, each as Train/Samples/KEY.
//
// x is the number of samples so far, skipped steps included, as DeepSpeed's global_samples. The sections "tensorboard" and
// "csv_monitor" say where: OUTPUT_PATH/JOB_NAME, made where it is not there.
//
// Errors    A file that cannot be made ends the run before its first step. One that cannot be written later is told of
//           once, its curves stop, training goes on, and the run ends with exit status 1, as metrics.jsonl's.
// Threads   One.
#ifndef STARRING_SHARED_MONITOR_MONITOR_H
#define STARRING_SHARED_MONITOR_MONITOR_H

#include "shared/config/config.h"
#include "shared/report/metrics.h"

struct monitor;
struct train_state;

// Whether the places of the enabled monitors could be written. 0, or -1 after saying of each why not.
int monitor_check(const struct config *c);
// start: what the first step goes on from. *out is NULL where no monitor is enabled. 0, or -1 after fail().
int monitor_create(const struct config *c, const struct train_state *start, struct monitor **out);
void monitor_step(struct monitor *m, const struct step_record *r);
int monitor_destroy(struct monitor **m);  // -1 after logging when something could not be written

#endif
