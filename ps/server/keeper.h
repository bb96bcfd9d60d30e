// A server's writer of checkpoints (ps/server/server_core.h). One thread writes server-R.safetensors of one checkpoint
// at a time, while the shards go on. The file has masters and optimizer states of the server's keys, the last key
// first, which is the order in which gradients arrive. Where pushes are applied on arrival it has the keys' rows too.
// server_read_checkpoint (server_threads.h) reads it.
//
//     shard threads   keeper_keep(key)  ---- copied ----.
//     this thread         .. waits for the last key, writes it; the one before; .. ; sidecar
//
// A server is responsible for its own file only: an error ends the checkpoint with a warning and server-R.failed. A
// checkpoint that begins while the last one is still being written (worker 0 has given that one up) fails in the same
// way, through another thread. A checkpoint fails too if it is incomplete when the job ends.
//
// Threads   keeper_keep: any shard's; all other functions: the server's main thread.
// Blocking  keeper_keep copies; keeper_end waits for what is being written.
#ifndef STARRING_PS_SERVER_KEEPER_H
#define STARRING_PS_SERVER_KEEPER_H

#include "ps/server/server_options.h"

// A server's file of one checkpoint (shared/state/part_file.h).
struct keeper_file {
    const struct config *config;
    const struct layout *layout;
    const struct shard_map *map;
    int rank;  // of the server: participant "server-RANK"
    const char *run_dir;
    int64_t step;
    uint64_t job;  // its number: part of the unfinished directory's name
};

struct keeper_options {
    struct keeper_file file;              // step is set per checkpoint
    const struct server_buffers *copies;  // (map->count) for copies of masters and states
};

// Counts of what was written, for the report.
struct keeper_figures {
    int64_t complete, failed;  // files
    int64_t bytes;             // of the complete ones
    double write_seconds;      // from a checkpoint's first key until its file is complete, all checkpoints
    double copy_seconds,
        copy_seconds_most;  // of all threads; the most in one checkpoint
};

struct keeper;
struct keeper *keeper_create(const struct keeper_options *o);  // Returns NULL after logging.
void keeper_keep(void *keeper, const struct kept_key *k);
bool keeper_idle(struct keeper *k);  // Whether no checkpoint is being written.
// No key follows. orderly: a checkpoint that has begun is completed; else it is given up.
void keeper_end(struct keeper *k, bool orderly);
struct keeper_figures keeper_figures(const struct keeper *k);  // Called after keeper_end.
void keeper_destroy(struct keeper **k);

#endif
