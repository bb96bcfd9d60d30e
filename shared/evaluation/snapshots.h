// A rank's share in the snapshots of a run: when they are due, and how the weights get from where they lie into their
// file while training goes on. Nobody waits for them but the next update of the very same weights.
//
//     ring, local    compute   | .. update t | forward, backward of t+1  | waits | update t+1 | ..
//                    snapshot                | writes this rank's part   |
//     star           worker 0 asks the servers for the weights of a version (topology_snapshot), which gather in a room of
//                    its own and are written from there. No server waits, and no other worker knows. The room holds one
//                    snapshot: on a slow disk worker 0 waits before it asks for the next one, as a ring's rank does.
//
// When           after every eval_every steps, or the first step that ends eval_every_seconds after the last snapshot
//                (worker 0's clock); where workers go at their own pace, eval_every counts global batches that the
//                servers have applied. The last weights are written by worker 0 alone, whatever the topology.
// Memory         The room: the weights, once, on worker 0 of a star whose run takes snapshots on its way.
// Failures       A snapshot that cannot be written is given up with a warning that names the file; training goes on.
// Threads        The loop's main thread, but snapshot_* (below): one thread of the topology.
// Owner          The rank's session; destroyed when the topology is gone and the device is not.
#ifndef STARRING_SHARED_EVALUATION_SNAPSHOTS_H
#define STARRING_SHARED_EVALUATION_SNAPSHOTS_H

#include "shared/config/config.h"
#include "shared/core/topology.h"
#include "shared/evaluation/snapshot_file.h"

// The needs that a snapshot has of a device. On a GPU it is made before the topology: nothing is created while collectives run.
struct snapshots_gear {
    struct stream *stream;
    struct event *ready, *written;
};
int snapshots_gear_create(struct snapshots_gear *g, struct device *dev);  // 0, or -1: dev_error says why
void snapshots_gear_destroy(struct snapshots_gear *g);  // also of one that is empty, or half made

struct snapshots_options {
    const struct config *config;
    const char *dir;  // run directory
    struct topology *topology;
    const struct snapshots_gear *gear;  // outlives the snapshots; NULL: they make their own
};

// The room's, added to bytes.
void snapshots_predict(const struct config *c, const struct layout *l, int rank, bool device_memory,
                       size_t bytes[MEM_CLASSES]);

struct snapshots;
// NULL where no evaluation is wanted, or, after a warning, where none can be made ready.
struct snapshots *snapshots_create(const struct snapshots_options *o);
void snapshots_destroy(struct snapshots **s);

// ---- the loop; s may be NULL in all of them
// The first step begins now, behind so many seconds of training in earlier starts of the run.
void snapshots_begin(struct snapshots *s, double before_s);
// Whether this rank asks for a snapshot after the step that ends now: step_input.snapshot.
bool snapshots_wanted(const struct snapshots *s);
// Before updates of the weights are enqueued on compute.
void snapshots_hold(struct snapshots *s);
// A step is over, and what follows it on compute has not been enqueued. told: what step_stats.snapshot said.
void snapshots_step(struct snapshots *s, const struct snapshot_info *now, bool told);
// The last weights, unit by unit, on rank 0: (n_pad) of the run's type in host memory.
void snapshots_last_begin(struct snapshots *s, const struct snapshot_info *now);
void snapshots_last_unit(struct snapshots *s, int u, const void *weights);
// Nothing reads this rank's weights any more: before they are given back.
void snapshots_settle(struct snapshots *s);
// Everything is in its file; what was not finished is removed.
void snapshots_end(struct snapshots *s);

// ---- a topology that collects the weights itself, one snapshot after the other. None of these touches a file.
struct snapshot;
// Whether the room is free: what was collected before is in its file, or given up.
bool snapshot_may_begin(const struct snapshot *s);
// The place for the unit's elements from this one on.
void *snapshot_room(const struct snapshot *s, int unit, int64_t begin);
// All of them are there; the keys' versions were least to most. The snapshot is no longer the topology's.
void snapshot_collected(struct snapshot *s, int64_t least, int64_t most);

#endif
