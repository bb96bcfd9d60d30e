// Writes DeepSpeed's monitor files (its monitor/*.py): rank 0 adds a point to each curve after every step.
//
//     Train/Samples/train_loss    mean over the global batch
//     Train/Samples/lr            of the step's update
//     Train/Samples/loss_scale    of the step, where dtype is fp16
//
// The event file also has all other values of a step's line in metrics.jsonl, each as Train/Samples/KEY.
//
// x is the number of samples so far, including skipped steps, as DeepSpeed's global_samples. The sections
// "tensorboard" and "csv_monitor" give the directory: OUTPUT_PATH/JOB_NAME, created if it does not exist.
//
// Errors    If a file cannot be created, the run ends before its first step. If a later write fails, this is reported
//           once and the file's curves stop; training continues, and the run ends with exit status 1, as for
//           metrics.jsonl.
// Threads   One.
#ifndef STARRING_SHARED_REPORT_MONITOR_H
#define STARRING_SHARED_REPORT_MONITOR_H

#include "shared/config/config.h"
#include "shared/report/metrics.h"

struct monitor;
struct train_state;

// Checks whether the enabled monitors' directories could be written. Returns 0, or -1 after logging the reason for
// each.
int monitor_check(const struct config *c);
// start: the state before the first step. *out receives NULL if no monitor is enabled. Returns 0, or -1 after fail().
int monitor_create(const struct config *c, const struct train_state *start, struct monitor **out);
void monitor_step(struct monitor *m, const struct step_record *r);
int monitor_destroy(struct monitor **m);  // Returns -1 after logging if a write failed.

#endif
