// The hooks of a step's end, and what else all ranks do together (shared/core/topology.h).
#ifndef STARRING_DECENTRAL_ZERO_ZERO_STEP_H
#define STARRING_DECENTRAL_ZERO_ZERO_STEP_H

#include "shared/core/topology.h"

int zero_step(struct topology *t, const struct step_input *in, struct step_stats *out);
int zero_sum(struct topology *t, double *values, int count);
int zero_finish(struct topology *t);
int zero_load_unit(struct topology *t, int u, const float *values);
void zero_abort(struct topology *t, const char *why);
const char *zero_why(struct topology *t);

#endif
