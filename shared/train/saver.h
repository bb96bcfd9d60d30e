// A rank's share in the checkpoints of a run (docs/recovery.md): which steps are kept, and how the state gets from where it
// lies into the rank's file while the run goes on. On worker 0 besides: whether all ranks' files are there, the manifest,
// and what older ones become.
//
//     directly      compute     | .. update t | forward, backward of t+1 | waits ...... | update t+1 | ..
//                   checkpoint                | writes this rank's part from where it lies |
//     background    compute     | .. update t | forward, backward of t+1 | update t+1 | ..
//                   checkpoint                | copies it aside | writes the copy ................... |
//
// Before     worker 0 begins a step whose state is to be kept, its previous checkpoint is complete or given up (the gate).
// Waiting    All of it happens on a stream of the rank's device: while it writes, or waits for other participants, the
//            rank is at work, and its peers wait with it however slow the disk is.
// Failures   end the checkpoint, not the run: worker 0 says which one, why, and what is kept.
// Star       Its servers write the state. Worker 0's file has no tensors, the other workers have none.
// Threads    The loop's main thread.
// Owner      The rank's session; destroyed when the topology is gone and the device is not.
#ifndef STARRING_SHARED_TRAIN_SAVER_H
#define STARRING_SHARED_TRAIN_SAVER_H

#include "shared/config/config.h"
#include "shared/core/arena.h"
#include "shared/core/topology.h"
#include "shared/report/rank_report.h"
#include "shared/state/identity.h"

// Its part of a device. On a GPU it is made before the topology: nothing is created while collectives run.
struct saver_gear {
    struct arena arena;
    struct stream *stream;
    struct event *ready, *free;  // the state is there; its memory may be written again
    float *copy;                 // of the whole state, or NULL
    float *staging;              // between a device's memory and a file, or NULL
};
// state_bytes: of struct prediction. Empty where the configuration asks for no checkpoints. 0, or -1: dev_error says why.
int saver_gear_create(struct saver_gear *g, const struct config *c, size_t state_bytes, struct device *dev);
void saver_gear_destroy(struct saver_gear *g);  // also of one that is empty, or half made
// Adds what a rank with so much state takes for its checkpoints.
void saver_predict(const struct config *c, size_t state_bytes, bool device_memory, size_t bytes[MEM_CLASSES]);

struct saver_options {
    const struct config *config;
    const char *dir;  // run directory
    struct topology *topology;
    uint64_t life;                    // of this start of the job, the same on all its ranks
    const struct identity *identity;  // what a manifest says of the run; worker 0's
    const struct saver_gear *gear;    // outlives the saver; NULL: it makes its own
};

struct saver;
// NULL where no checkpoints are wanted or this rank has no part in them, or, after a warning, where none can be made.
// Worker 0 removes what earlier lives have left unfinished.
struct saver *saver_create(const struct saver_options *o);
void saver_destroy(struct saver **s);

// ---- the loop; s may be NULL in all of them
// Whether the state behind attempt `step` is to be kept: every checkpoint_every, the last, and where the run ends early.
// Where ranks share a budget no step is known to be the last one: the loop has finish keep what is behind all of them.
bool saver_due(const struct saver *s, int64_t step, bool leaving);
void saver_gate(struct saver *s);  // before a step that is due
void saver_hold(struct saver *s);  // before updates are enqueued on compute
// A step whose state is to be kept is over, and what follows it on compute has not been enqueued.
void saver_keep(struct saver *s, const struct train_state *now);
// The run has failed: nobody waits any longer for what other participants may never write.
void saver_quit(struct saver *s);
// Everything is on disk or given up, and nothing reads this rank's state any more.
void saver_settle(struct saver *s);
size_t saver_state_bytes(const struct saver *s);               // of this rank
struct checkpoint_report saver_report(const struct saver *s);  // after saver_settle

#endif
