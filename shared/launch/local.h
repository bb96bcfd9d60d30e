// The local topology: one process, no communication. The reference for the other topologies' bits and speed.
#ifndef STARRING_SHARED_LAUNCH_LOCAL_H
#define STARRING_SHARED_LAUNCH_LOCAL_H

#include "shared/core/topology_row.h"
#include "shared/model/optimizer.h"

struct local_options {
    const struct layout *layout;  // for one rank
    enum dtype dtype;
    struct device *dev;
    struct stream *compute;
    struct optimizer_config optimizer;
    bool sums_in_fp32;   // micro-batches are summed in fp32 (config_sums_in_fp32)
    int delay;           // how many of the latest updates a step's weights do not contain
    bool device_memory;  // the device has memory of its own; set for local_predict, local_create asks dev
};

// Returns the options of a configuration, without dev and compute.
struct local_options local_options_of(const struct config *c, const struct layout *l);
struct textbook local_textbook(const struct optimizer *o, enum dtype dtype);
int local_predict(const struct local_options *o, struct topology_memory *mem);
struct topology *local_create(const struct local_options *o);  // Returns NULL after logging.
// For topologies with a local topology per rank. local_own_state lists all of its state as the rank's own (STATE_OWN).
// local_load_own loads it from a checkpoint of `ranks` ranks; local->start is set. It returns 0; 1 without logging if
// the checkpoint does not have it; or -1 after logging.
int local_own_state(struct topology *local, int index, struct state_range *out);
int local_load_own(struct topology *local, struct checkpoint *c, int rank, int ranks);
extern const struct topology_row topology_local;
// A table with only this row, for programs that need no other topology.
extern const struct topology_table topology_local_alone;

#endif
