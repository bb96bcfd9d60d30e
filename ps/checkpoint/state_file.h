// One server's part of a checkpoint (shared/state/part_file.h): masters and optimizer states of its keys, the last key
// first, for that is the order in which gradients come, and, where pushes are applied on arrival, the keys' rows.
//
// Threads   One at a time.
// Errors    Texts (malloc'd, the caller's); nothing is logged.
#ifndef STARRING_PS_CHECKPOINT_STATE_FILE_H
#define STARRING_PS_CHECKPOINT_STATE_FILE_H

#include "ps/checkpoint/key_rows.h"
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
    uint64_t life;
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

// Reading: fills the masters and states of server `rank`'s keys. buffers (map->count); seen (may be NULL) counts keys.
// 0, or -1 after logging.
struct state_read {
    const struct config *config;
    const struct layout *layout;
    const struct shard_map *map;
    int rank;
    const struct server_buffers *buffers;
    const _Atomic int *stop;  // NULL: never
};
int state_file_read(const struct state_read *r, struct checkpoint *c);

#endif
