// Where a server's keys go that are to be kept (ps/server/server_core.h): one thread that writes server-R.safetensors
// of one checkpoint at a time, while the shards go on. It has masters and optimizer states of the server's keys, the last key
// first, for that is the order in which gradients come, and, where pushes are applied on arrival, the keys' rows.
// server_read_checkpoint (server_threads.h) reads it.
//
//     shard threads   keeper_keep(key)  ---- copied aside ----.
//     this thread         .. waits for the last key, writes it; the one before; .. ; sidecar
//
// A checkpoint is a server's matter as far as its file: an error ends the checkpoint with a warning and
// server-R.failed. A checkpoint that begins while the last one is still being written
// (worker 0 has given that one up) is refused in the same way, by another thread, and so is one that is not complete when the job ends.
//
// Threads   keeper_keep: any shard's; the rest: the server's main thread.
// Blocking  keeper_keep copies; keeper_end waits for what is being written.
#ifndef STARRING_PS_SERVER_KEEPER_H
#define STARRING_PS_SERVER_KEEPER_H

#include "ps/server/server_options.h"

// A server's part of one checkpoint (shared/state/part_file.h).
struct keeper_file {
    const struct config *config;
    const struct layout *layout;
    const struct shard_map *map;
    int rank;  // of the server: participant "server-RANK"
    const char *run_dir;
    int64_t step;
    uint64_t
        life;  // the job's number: server and worker 0 name the unfinished directory by it, and so meet there
};

struct keeper_options {
    struct keeper_file file;  // step is each checkpoint's
    const struct server_buffers
        *copies;  // (map->count) room for those of the server's keys: masters and states
};

// The counts of what has been written, for the report.
struct keeper_figures {
    int64_t complete, failed;                // files
    int64_t bytes;                           // of the complete ones
    double write_seconds;                    // from a checkpoint's first key to its end on disk, all of them
    double copy_seconds, copy_seconds_most;  // that shards made copies, all threads added; of one checkpoint
};

struct keeper;
struct keeper *keeper_create(const struct keeper_options *o);  // NULL after logging
void keeper_keep(void *keeper, const struct kept_key *k);
bool keeper_idle(struct keeper *k);  // nothing is being written
// Nothing comes any more. orderly: what has begun is completed; else it is given up.
void keeper_end(struct keeper *k, bool orderly);
struct keeper_figures keeper_figures(const struct keeper *k);  // after keeper_end
void keeper_destroy(struct keeper **k);

#endif
