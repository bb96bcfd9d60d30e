// Where an epoch begins: the checkpoint that START names, and the line in DIR/lives.jsonl that says so.
#ifndef STARRING_PS_SCHEDULER_EPOCH_START_H
#define STARRING_PS_SCHEDULER_EPOCH_START_H

#include "ps/job/ps.h"
#include "ps/scheduler/membership.h"

// The first epoch of this scheduler: what DIR/lives.jsonl says of those before, if it goes on with their job.
// checkpoint: that the configuration says to go on from; "": none.
void epoch_first(const struct ps_role_options *o, const char *checkpoint, struct epoch_options *out);
// scheduler_options.starts, ctx: the role's options. The first epoch of a job begins where the configuration says, a
// later one at the latest complete checkpoint of the run, if there is one.
int epoch_starts(void *ctx, const struct epochs *e, struct epoch_start *out, char error[WIRE_TEXT_MAX]);

#endif
