// State that a server's threads share. The main thread is the member of the job, and watches the others (server.c).
// Each shard thread owns one ROUTER, its own DEALER to the scheduler, one core and the core's keys (shard.c). They
// share only what is below. Included only by these two files and server_sharing.c.
#ifndef STARRING_PS_SERVER_SERVER_THREADS_H
#define STARRING_PS_SERVER_SERVER_THREADS_H

#include <pthread.h>

#include "ps/agree/key_rows.h"
#include "ps/job/timing.h"
#include "ps/net/link.h"
#include "ps/net/member.h"
#include "ps/net/net.h"
#include "ps/record/arrivals.h"
#include "ps/record/staleness_log.h"
#include "ps/server/keeper.h"
#include "ps/server/server_core.h"
#include "ps/server/server_memory.h"
#include "shared/core/segment.h"
#include "shared/time/poll_clock.h"

// ---------------------------------------------------------------- shared memory (server_sharing.c)
struct server_sharing {
    bool shares;         // as configured
    struct segment own;  // base NULL: no weights are published
    int count;           // of workers
    struct worker_segment {
        char name[SEGMENT_NAME_MAX];  // "": not opened
        struct segment segment;
        uint32_t process_no;  // number of the owner, if another process may get the worker's rank; else 0
        uint32_t *met;        // (threads) the last process of the rank that each shard knows
        struct old_segment {
            struct segment segment;
            uint32_t process_no;
        } * old;  // segments of dead processes, until no shard uses them
        int olds;
    } * workers;
    int threads;
    pthread_mutex_t lock;  // guards workers
};

// Creates the own segment if server `rank` publishes weights in one. Returns 0, or -1 after logging.
int server_sharing_create(struct server_sharing *s, const struct config *c, const struct shard_map *m,
                          int rank);
void server_sharing_destroy(struct server_sharing *s);  // Accepts a zeroed struct.
// Answers a worker's ATTACH to shard thread `thread`: *out receives what its shard may use from now on, *answer the
// ATTACHED.
void server_sharing_answer(struct server_sharing *s, int thread, const struct wire_header *h,
                           struct server_segment *out, struct wire_header *answer);

// ---------------------------------------------------------------- threads
struct server;
struct stall_watch;

struct shard {
    struct server *server;
    int thread;
    struct ps_identity id;
    struct net_lines lines;  // to the workers, by one ROUTER, and the scheduler
    struct link *link;       // over these lines
    struct server_core *core;
    struct thread_time *spans;
    struct arrivals *record, *replay;  // NULL: none
    struct staleness_log *staleness_log;
    bool acquainted;  // its core knows the members of the job
    bool heard;       // the scheduler has sent a message, so it has this thread's address
    pthread_t tid;
    bool started, loaded;          // loaded: its keys have the checkpoint's state
    _Atomic uint64_t turns;        // iterations of its loop: the main thread finds a stuck thread by it
    struct poll_watch poll_watch;  // the main thread's
    _Atomic int failed;            // error is complete before this is set
    char error[WIRE_TEXT_MAX];
};

struct server {
    const struct ps_role_options *o;
    const struct config *c;
    struct shard_map *map;
    struct manifest manifest, order;
    struct net *net;
    struct net_lines lines;  // of the main thread: only to the scheduler
    struct link *link;       // over these lines
    struct stall_watch *watch;
    struct wire_count wire;
    struct ps_identity id;
    char *endpoints;
    struct device *dev;
    struct arena arena;
    struct server_buffers *buffers;
    struct server_sharing sharing;
    struct shard *shards;             // (threads)
    _Atomic(struct roster *) roster;  // the members of the job; NULL: it has not started
    char token[JOB_TOKEN_MAX];        // which messages to its shards must contain
    struct server_buffers *copies;    // (map->count) of keys being written; all NULL: no checkpoints
    struct keeper *keeper;            // NULL: no checkpoints
    struct start_point from;          // known with the roster
    struct background *reader;        // reads the checkpoint that `from` names; NULL: not started, or none
    struct key_rows rows;             // the rows of all keys in that checkpoint
    _Atomic bool loaded;              // it has been read: buffers and rows are filled
    _Atomic int quit;
    // Times of the first gradient and of the last update, by the clock and in CPU time of the process.
    _Atomic int64_t begin_ns, cpu_begin_ns, end_ns, cpu_end_ns;
    struct scheduler_figures scheduler_cost;  // as the scheduler sent it at the end of the job
};

// The options for reading a checkpoint that was written by keeper.h or by any other topology.
struct state_read {
    const struct config *config;
    const struct layout *layout;
    const struct shard_map *map;
    int rank;
    const struct server_buffers *buffers;  // (map->count)
};
// Fills the masters and states of server `rank`'s keys, and the rows of all keys of the job (call key_rows_free in both
// cases). stop: NULL: never. Returns 0, or -1 after logging.
int server_read_checkpoint(const struct state_read *r, const struct start_point *from, struct key_rows *rows,
                           const _Atomic int *stop);

// A shard's thread; arg: struct shard. shard_renew: how its link resends payloads.
void *shard_main(void *arg);
bool shard_renew(void *shard, int peer, struct ps_message *m);

#endif
