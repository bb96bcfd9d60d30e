// The local topology: one process, no communication; the oracle and the baseline.
#ifndef STARRING_SHARED_LAUNCH_LOCAL_H
#define STARRING_SHARED_LAUNCH_LOCAL_H

#include "shared/core/topology_row.h"
#include "shared/model/optimizer.h"

struct local_options {
    const struct layout *layout;  // world = 1
    enum dtype dtype;
    struct device *dev;
    struct stream *compute;
    struct optimizer_config optimizer;
    bool sums_in_fp32;   // of micro-batches: config_sums_in_fp32
    int delay;           // steps whose updates the weights lack that a step computes on
    bool device_memory;  // its memory is not the host's: for local_predict, local_create asks dev
};

// Of a configuration, but for dev and compute.
struct local_options local_options_of(const struct config *c, const struct layout *l);
int local_predict(const struct local_options *o, struct topology_memory *mem);
struct topology *local_create(const struct local_options *o);  // NULL after logging
// For topologies whose ranks have a local one each: all of its state as state of the rank's own (STATE_OWN), and how it is taken
// from a checkpoint of so many ranks; local's start is set by then. load: 0; 1, nothing logged: it is not there; -1.
int local_own_state(struct topology *local, int index, struct state_range *out);
int local_load_own(struct topology *local, struct checkpoint *c, int rank, int ranks);
extern const struct topology_row topology_local;
// For programs' parts that no other topology concerns.
extern const struct topology_table topology_local_alone;

#endif
