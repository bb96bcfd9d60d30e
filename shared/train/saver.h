// Writes one rank's share of checkpoints and snapshots during a run (docs/recovery.md). A checkpoint is the whole
// state, to resume from. A snapshot is the weights only, which another process evaluates. Both use the same path. It
// decides which steps are kept and copies the values into the rank's file. On worker 0 it also waits for all ranks'
// files, writes the manifest and removes old ones.
//
//     directly      compute     | .. update t | forward, backward of t+1 | waits ...... | update t+1 | ..
//                   the stream                | writes this rank's file directly from its memory |
//     background    compute     | .. update t | forward, backward of t+1 | update t+1 | ..
//                   the stream                | copies, then writes the copy .................... |
//     star,         each server writes its keys' state (ps/server/keeper.h). Worker 0 marks the step, writes a file
//     checkpoints   that confirms the step, without tensors unless it codes its gradients (then with the errors of the
//                   code, as each worker does), waits for all files and renames the directory.
//     star,         worker 0 asks the servers for the weights of one version (topology_snapshot). They are collected in
//     snapshots     a buffer of their own, and written from there. No server waits, and no other worker takes
//                   part. The buffer holds one snapshot: on a slow disk worker 0 waits before it asks for the next one.
//
// Streams    Checkpoints and snapshots each have a stream of the rank's device, for files and for waiting on other
//            participants. Only the next update of values that are being written in place waits for that stream.
// Previous   Worker 0 begins a step that is to be kept only after its previous checkpoint is complete or given up.
// Snapshots  One is taken every eval_every steps, or at the first step that ends eval_every_seconds after the last one
//            (worker 0's clock). Where workers do not wait for each other, eval_every counts global batches that the
//            servers have applied. Worker 0 writes the last weights itself, in every topology.
// Failures   A checkpoint or snapshot that cannot be written is given up with a warning. Training continues.
// Memory     The copy, or the staging buffer, of a device; and the buffer of snapshots: all weights once, on worker 0 of a star that
//            takes snapshots.
// Threads    The loop's main thread, except snapshot_* (below): one thread of the topology.
// Owner      The rank's session. It destroys the saver after the topology and before the device.
#ifndef STARRING_SHARED_TRAIN_SAVER_H
#define STARRING_SHARED_TRAIN_SAVER_H

#include "shared/config/config.h"
#include "shared/core/arena.h"
#include "shared/core/topology.h"
#include "shared/report/rank_report.h"
#include "shared/state/checkpoint.h"
#include "shared/state/identity.h"

// The saver's streams, events and buffers of one device. On a GPU they are created before the topology:
// nothing is created while collectives run.
struct saver_buffers {
    struct arena arena;
    struct {
        struct stream *stream;       // NULL: none of this kind are kept
        struct event *ready, *free;  // ready: the values exist. free: their memory may be overwritten
    } of[CHECKPOINT_KINDS];
    float *copy;     // a copy of the whole state; NULL: none
    float *staging;  // staging between a device's memory and a file; NULL: none
};
// state_bytes: of struct prediction. Creates nothing where the configuration keeps nothing. Returns 0, or -1:
// dev_error says why.
int saver_buffers_create(struct saver_buffers *b, const struct config *c, size_t state_bytes,
                         struct device *dev);
void saver_buffers_destroy(struct saver_buffers *b);  // Accepts one that is empty or partly created.
// Returns the memory that worker `rank` needs: for its checkpoints of state_bytes, and for snapshots (worker 0
// of a star).
struct saver_bytes {
    size_t checkpoints[MEM_CLASSES], snapshots[MEM_CLASSES];
};
struct saver_bytes saver_predict(const struct config *c, const struct layout *l, int rank, size_t state_bytes,
                                 bool device_memory);

struct saver_options {
    const struct config *config;
    const char *dir;  // run directory
    struct topology *topology;
    uint64_t start_number;                // number of this start of the job, the same on all its ranks
    const struct identity *identity;      // the manifest's description of the run; worker 0
    const struct saver_buffers *buffers;  // outlive the saver; NULL: the saver creates its own
    bool evaluates;                       // validation text exists, so snapshots are evaluated
};

struct saver;
// Returns NULL where nothing is kept or this rank has no share in it, or, after a warning, where creation
// fails. Worker 0 removes unfinished files of earlier starts.
struct saver *saver_create(const struct saver_options *o);
void saver_destroy(struct saver **s);

// ---- the loop; s may be NULL in all of them
// Call it before any rank begins a step. before_s: seconds of training in earlier starts of the run. Asks for
// the first snapshot, where the request must come before its version exists.
void saver_request_first(struct saver *s, double before_s);
void saver_start(struct saver *s, double before_s);  // Called when the first step begins.
// Returns whether the state after attempt `step` is kept: every checkpoint_every steps, after the last step,
// and where the run ends early. Where ranks share a budget, the last step is unknown in advance: the loop's
// finish keeps the final state.
bool saver_is_checkpoint_due(const struct saver *s, int64_t step, bool stopping);
void saver_wait_previous(struct saver *s);  // Called before a step whose state is kept.
// Returns whether this rank wants a snapshot after the step that ends now: step_input.snapshot.
bool saver_wants_snapshot(const struct saver *s);
void saver_delay_updates(struct saver *s);  // Called before updates are enqueued on compute.
// Keeps the state after a step. Call it before anything after that step is enqueued on compute.
void saver_write_checkpoint(struct saver *s, const struct train_state *now);
// Takes a snapshot after a step if one is due. Call it at the same time as saver_write_checkpoint. requested:
// step_stats.snapshot. seconds: of training.
void saver_take_snapshot(struct saver *s, const struct train_state *now, double seconds, bool requested);
// Writes the last weights, on rank 0, unit by unit from 0 on: (n_pad) of the run's type in host memory.
void saver_final_begin(struct saver *s, const struct train_state *now, double seconds);
void saver_final_unit(struct saver *s, int u, const void *weights);
// Called when the run has failed: ends the wait for files that other participants may never write.
void saver_abandon(struct saver *s);
// Blocks until everything is on disk or given up. Afterwards nothing reads this rank's values.
void saver_finish(struct saver *s);
size_t saver_state_bytes(const struct saver *s);         // Returns the bytes of this rank's state.
bool saver_takes_snapshots(const struct saver *s);       // Returns whether this rank takes snapshots.
struct checkpoint_report saver_report(struct saver *s);  // Called after saver_finish.

// ---- for a topology that collects the weights itself, one snapshot after the other. These functions touch no file.
struct snapshot;
// Returns whether the buffer is free: the previous snapshot is in its file, or given up.
bool snapshot_can_begin(const struct snapshot *s);
// Returns the address in the buffer for the unit's elements from `begin` on.
void *snapshot_address(const struct snapshot *s, int unit, int64_t begin);
// All elements are in the buffer; the keys' versions are between least and most, and each key has at least so many updates.
// The topology must not use the snapshot afterwards.
void snapshot_collected(struct snapshot *s, int64_t least, int64_t most, int64_t updates);

#endif
