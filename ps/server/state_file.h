// One server's part of a checkpoint (shared/state/part_file.h): masters and optimizer states of its keys, the last key
// first, for that is the order in which gradients come, and, where pushes are applied on arrival, the keys' rows.
//
// Threads   One at a time.
// Errors    Writing: texts (malloc'd, the caller's), nothing is logged. Reading: -1 or NULL after logging.
#ifndef STARRING_PS_SERVER_STATE_FILE_H
#define STARRING_PS_SERVER_STATE_FILE_H

#include "ps/agree/key_rows.h"
#include "ps/server/server_memory.h"
#include "shared/state/part_file.h"

// The keys of server `rank`, the last one first (malloc'd).
int *state_file_keys(const struct shard_map *map, int rank, int *count);

struct state_file_options {
    const struct config *config;
    const struct layout *layout;
    const struct shard_map *map;
    int rank;  // of the server whose keys these are, whoever writes them: participant "server-RANK"
    const char *run_dir;
    int64_t step;
    uint64_t
        life;  // the job's number: server and worker 0 name the unfinished directory by it, and so meet there
};

struct state_file;
struct state_file *state_file_create(const struct state_file_options *o, char **error);
// The keys in their order, each once; stop (NULL: never): given up when it becomes true. -1: the file cannot be finished
// any more.
int state_file_write(struct state_file *f, const struct key_counts *k, const struct server_buffers *buf,
                     const _Atomic int *stop);
int64_t state_file_bytes(const struct state_file *f);
// All keys are written: on disk when it returns 0. Frees f, as discard does.
int state_file_finish(struct state_file **f, char **error);
void state_file_discard(struct state_file **f, const char *why);
// There will be no file at all.
void state_file_refuse(const struct state_file_options *o, const char *why);

// ---- reading
struct state_read {
    const struct config *config;
    const struct layout *layout;
    const struct shard_map *map;
    int rank;
    const struct server_buffers *buffers;  // (map->count)
};
// Fills the masters and states of server `rank`'s keys. stop: NULL: never. 0, or -1 after logging.
int state_file_read(const struct state_read *r, struct checkpoint *c, const _Atomic int *stop);

// The loader reads the part that a job goes on from in the background (shared/core/background.h): shards and main thread answer
// their peers meanwhile. Pulls that come before it has been read wait (ps/server/server_core.h). One thread creates and destroys it;
// loader_state from any.
enum loader_state { LOADER_READS, LOADER_DONE, LOADER_FAILED };

struct loader;
// path: absolute. seal: what the checkpoint has where the scheduler runs (start_point.h). Copies what o points to, but not
// what that points to. NULL after logging.
struct loader *loader_create(const struct state_read *o, const char *path, uint64_t seal);
enum loader_state loader_state(struct loader *l);
// Once it is done: how far all keys of the job are, and the steps behind which the checkpoint is.
const struct key_rows *loader_rows(const struct loader *l);
int64_t loader_step(const struct loader *l);
// Once it has failed: why.
const char *loader_error(struct loader *l);
void loader_stop(struct loader *l);  // reads no further; NULL is allowed
void loader_destroy(struct loader **l);

#endif
