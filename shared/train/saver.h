// A rank's share in what a run keeps of its weights and of its whole state, while it goes on (docs/recovery.md): checkpoints,
// to go on from, and snapshots, which are checkpoints of the weights alone and are evaluated apart. One way for both: which
// steps are kept, how the values get from where they lie into the rank's file, and on worker 0 besides whether all ranks'
// files are there, the manifest, and what older ones become.
//
//     directly      compute     | .. update t | forward, backward of t+1 | waits ...... | update t+1 | ..
//                   the stream                | writes this rank's part from where it lies |
//     background    compute     | .. update t | forward, backward of t+1 | update t+1 | ..
//                   the stream                | copies it aside | writes the copy ................... |
//     star,         the servers write their keys' (ps/server/keeper.h). Here worker 0 marks the step, leaves a part without
//     checkpoints   tensors, which says that it got there, waits for all parts and gives the directory its name.
//     star,         worker 0 asks the servers for the weights of a version (topology_snapshot), which gather in a room of its
//     snapshots     own and are written from there. No server waits, and no other worker knows. The room holds one snapshot:
//                   on a slow disk worker 0 waits before it asks for the next one.
//
// Streams    Checkpoints and snapshots have a stream of the rank's device each, with files and waiting for other participants:
//            only the next update of what is being written from where it lies waits for it.
// Before     worker 0 begins a step whose state is to be kept, its previous checkpoint is complete or given up (the gate).
// Snapshots  come after every eval_every steps, or the first step that ends eval_every_seconds after the last one (worker 0's
//            clock); where workers go at their own pace, eval_every counts global batches that the servers have applied. The
//            last weights are written by worker 0 alone, whatever the topology.
// Failures   What cannot be kept is given up with a warning that says why; training goes on.
// Memory     The copy, or staging, of a device; and the room: the weights, once, on worker 0 of a star that takes snapshots.
// Threads    The loop's main thread, but snapshot_* (below): one thread of the topology.
// Owner      The rank's session; destroyed when the topology is gone and the device is not.
#ifndef STARRING_SHARED_TRAIN_SAVER_H
#define STARRING_SHARED_TRAIN_SAVER_H

#include "shared/config/config.h"
#include "shared/core/arena.h"
#include "shared/core/topology.h"
#include "shared/report/rank_report.h"
#include "shared/state/checkpoint.h"
#include "shared/state/identity.h"

// Its part of a device. On a GPU it is made before the topology: nothing is created while collectives run.
struct saver_gear {
    struct arena arena;
    struct {
        struct stream *stream;       // NULL: none of this kind are kept
        struct event *ready, *free;  // the values are there; their memory may be written again
    } of[CHECKPOINT_KINDS];
    float *copy;     // of the whole state, or NULL
    float *staging;  // of it between a device's memory and a file, or NULL
};
// state_bytes: of struct prediction. Empty where the configuration asks for nothing. 0, or -1: dev_error says why.
int saver_gear_create(struct saver_gear *g, const struct config *c, size_t state_bytes, struct device *dev);
void saver_gear_destroy(struct saver_gear *g);  // also of one that is empty, or half made
// Adds what worker `rank` with so much state takes: for its checkpoints, and for its snapshots, which are worker 0's of a star.
struct saver_bytes {
    size_t checkpoints[MEM_CLASSES], snapshots[MEM_CLASSES];
};
struct saver_bytes saver_predict(const struct config *c, const struct layout *l, int rank, size_t state_bytes,
                                 bool device_memory);

struct saver_options {
    const struct config *config;
    const char *dir;  // run directory
    struct topology *topology;
    uint64_t life;                    // of this start of the job, the same on all its ranks
    const struct identity *identity;  // what a manifest says of the run; worker 0's
    const struct saver_gear *gear;    // outlives the saver; NULL: it makes its own
    bool evaluates;                   // there is text to evaluate snapshots on
};

struct saver;
// NULL where nothing is to be kept or this rank has no part in it, or, after a warning, where nothing can be. Worker 0
// removes what earlier lives have left unfinished.
struct saver *saver_create(const struct saver_options *o);
void saver_destroy(struct saver **s);

// ---- the loop; s may be NULL in all of them
// Before any rank takes a step, behind so many seconds of training in earlier starts of the run: asks for the first snapshot, where
// that has to be asked for before its version is there.
void saver_ask(struct saver *s, double before_s);
void saver_begin(struct saver *s, double before_s);  // the first step begins now
// Whether the state behind attempt `step` is to be kept: every checkpoint_every, the last, and where the run ends early.
// Where ranks share a budget no step is known to be the last one: the loop has finish keep what is behind all of them.
bool saver_due(const struct saver *s, int64_t step, bool leaving);
void saver_gate(struct saver *s);  // before a step that is due
// Whether this rank asks for a snapshot behind the step that ends now: step_input.snapshot.
bool saver_wants(const struct saver *s);
void saver_hold(struct saver *s);  // before updates are enqueued on compute
// A step whose state is to be kept is over, and what follows it on compute has not been enqueued.
void saver_keep(struct saver *s, const struct train_state *now);
// A step is over, likewise: takes a snapshot if one is due. told: what step_stats.snapshot said. seconds: of training.
void saver_step(struct saver *s, const struct train_state *now, double seconds, bool told);
// The last weights, on rank 0, unit by unit from 0 on: (n_pad) of the run's type in host memory.
void saver_last_begin(struct saver *s, const struct train_state *now, double seconds);
void saver_last_unit(struct saver *s, int u, const void *weights);
// The run has failed: nobody waits any longer for what other participants may never write.
void saver_quit(struct saver *s);
// Everything is on disk or given up, and nothing reads this rank's values any more.
void saver_settle(struct saver *s);
size_t saver_state_bytes(const struct saver *s);         // of this rank
bool saver_evaluates(const struct saver *s);             // it takes snapshots
struct checkpoint_report saver_report(struct saver *s);  // after saver_settle

// ---- a topology that collects the weights itself, one snapshot after the other. None of these touches a file.
struct snapshot;
// Whether the room is free: what was collected before is in its file, or given up.
bool snapshot_may_begin(const struct snapshot *s);
// The place for the unit's elements from this one on.
void *snapshot_room(const struct snapshot *s, int unit, int64_t begin);
// All of them are there; the keys' versions were least to most. The snapshot is no longer the topology's.
void snapshot_collected(struct snapshot *s, int64_t least, int64_t most);

#endif
