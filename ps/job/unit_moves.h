// How often a worker moves each unit in a step, for predictions. It pushes a gradient and pulls weights once. If it
// keeps two units at a time, it pushes per micro-batch and pulls as its slots' schedule demands
// (shared/model/unit_schedule.h).
#ifndef STARRING_PS_JOB_UNIT_MOVES_H
#define STARRING_PS_JOB_UNIT_MOVES_H

#include "shared/config/config.h"
#include "shared/core/topology.h"
#include "shared/core/unit.h"
#include "shared/model/step_tasks.h"

// The slots of a worker's weights (parameter_server.resident): one for each unit, or those of two units at a time.
struct unit_prefetch unit_residence(const struct config *c);
int64_t unit_pushes(const struct config *c);
// Returns the bytes that a worker may have pushed and that no sum contains yet (parameter_server.credit_bytes). "auto":
// all bytes of a step, `pushed`, so that no worker waits for credits, if the free memory allows it. All workers
// together take at most a quarter of the free memory, and each at least CREDIT_LEAST.
#define CREDIT_LEAST ((int64_t)64 << 20)
int64_t credit_of(const struct config *c, int64_t pushed);
// out: (ps_units). Returns 0, or -1 after logging.
int unit_pulls(const struct config *c, const struct layout *l, int64_t *out);
// Adds the tasks of a worker's step. All bytes count as sent and received (take_local in star.c subtracts local ones).
// Returns 0, or -1 after logging.
int unit_tasks(const struct config *c, const struct layout *l, struct step_tasks *t);
// Counts `own` of the bytes to and from a role's peers as local instead of as wire bytes: those of the process on the
// same machine (ps_beside).
void unit_moves_local(struct wire_prediction *w, uint64_t own_sent, uint64_t own_received);

#endif
