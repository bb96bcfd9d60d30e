// How often a worker moves each unit in a step: it pushes a gradient and pulls weights once, or, where it keeps two units at a
// time, pushes of each micro-batch and pulls as the schedule of its slots says (shared/model/unit_schedule.h). Of predictions.
#ifndef STARRING_PS_JOB_UNIT_MOVES_H
#define STARRING_PS_JOB_UNIT_MOVES_H

#include "shared/config/config.h"
#include "shared/core/topology.h"
#include "shared/core/unit.h"

int64_t unit_pushes(const struct config *c);
// Bytes that a worker may have pushed and not in a sum yet (parameter_server.credit_bytes). "auto": all of a step's, `pushed`, so
// that no worker waits for credits, as far as the memory that is free now allows it: of all workers together a quarter, of
// each CREDIT_LEAST at least.
#define CREDIT_LEAST ((int64_t)64 << 20)
int64_t credit_of(const struct config *c, int64_t pushed);
void unit_pulls(const struct config *c, const struct layout *l, int64_t *out);  // (units)
// Of what goes to and comes from all of a role's peers, `own` bytes are of the process beside it: they are local, on no wire.
void unit_moves_local(struct wire_prediction *w, uint64_t own_sent, uint64_t own_received);

#endif
