// The files of a rescue (ps/scheduler/rescue.h): a thread of the scheduler's process waits for the servers' parts,
// completes the checkpoint, and removes those that are too many.
//
// Threads   The scheduler's; one of its own while it waits.
#ifndef STARRING_PS_SCHEDULER_RESCUE_FILES_H
#define STARRING_PS_SCHEDULER_RESCUE_FILES_H

#include "ps/job/ps.h"
#include "ps/scheduler/rescue_port.h"

struct rescue_files;
struct rescue_files *rescue_files_create(const struct ps_role_options *o);  // o outlives it
// Nothing where the configuration asks for no replication, or there is no run directory.
struct rescue_port rescue_files_port(struct rescue_files *r);
// An epoch is about to begin, and nobody of an earlier one writes any more: removes what was not completed then. Where the
// last step's decision has reached worker 0 too late, its line is missing in metrics.jsonl: adds it.
void rescue_files_tidy(struct rescue_files *r);
// The epoch begins with this checkpoint ("": none): its state is read, for the port's `read`. Both on the thread of the scheduler's files,
// before the epoch has begun; all else on the scheduler's.
void rescue_files_read(struct rescue_files *r, const char *checkpoint);
void rescue_files_destroy(struct rescue_files **r);  // what is under way is given up

#endif
