// A worker's two threads and what they share.
//
//     main (hooks) and compute (host functions)        communication thread
//         commands ------ mutex, eventfd ------>       worker_core, sockets
//         published <----- mutex, condition ----       (copied out after every turn)
//
// The core and the sockets belong to the communication thread from start to join; weights are written
// by it alone between a unit's push and its landing, and read by compute alone otherwise. A device with
// memory of its own stands behind twins of the buffers: ps/worker/staging.h says who has them when.
#ifndef STARRING_PS_WORKER_WORKER_STATE_H
#define STARRING_PS_WORKER_WORKER_STATE_H

#include <pthread.h>

#include "ps/consistency.h"
#include "ps/net/login.h"
#include "ps/ps.h"
#include "ps/timing.h"
#include "ps/worker/staging.h"
#include "ps/worker/worker_core.h"
#include "ps/worker/worker_memory.h"
#include "shared/core/error.h"

enum command_kind {
    COMMAND_PUSH,
    COMMAND_INIT,
    COMMAND_REPORT,
    COMMAND_GATHER,
    COMMAND_PULL_ALL,
    COMMAND_STOP,
    COMMAND_GOODBYE
};

struct command {
    enum command_kind kind;
    int unit;
    struct push_info push;
    const float *values;  // INIT: (n_pad), until the unit is no longer busy
    uint64_t round;       // INIT
    struct step_input report;
    double loss;  // REPORT: this worker's share
    double gather[WIRE_VALUES_MAX];
    int count;  // GATHER
};

// The communication thread's last word on everything the hooks wait for.
struct published {
    int64_t *landed;  // (units)
    int *busy;        // (units)
    int pulling;
    int64_t steps_done;
    struct step_stats stats;
    uint64_t gathers_done;
    double gathered[WIRE_VALUES_MAX];
    bool parted, stopped;
    struct staleness staleness;
    double busy_s;          // any transfer outstanding
    char waiting_for[192];  // what the unit somebody waits for lacks
};

struct worker;

struct unit_task {
    struct worker *worker;
    int unit;
    struct push_info push;
};

struct worker {
    struct topology t;  // first: hooks cast
    const struct config *c;
    struct ps_role_options role;
    struct consistency_rule rule;
    struct shard_map *map;
    struct arena arena;
    struct worker_buffers buffers;
    struct staging *staging;  // NULL: the device's memory is host memory
    struct ps_identity id;
    struct net *net;
    struct net_socket *scheduler;
    struct net_socket **shards;  // (map->shards)
    struct worker_core *core;
    pthread_t thread;
    bool thread_started;
    uint64_t taken;  // commands; the communication thread's
    int wake_fd;

    pthread_mutex_t mutex;
    pthread_cond_t changed;    // published or failed
    struct command *commands;  // guarded by mutex, as all below
    int command_count, command_capacity;
    struct published now;
    uint64_t issued, obeyed;  // commands ever given; those of them in what is published
    int waited_unit;          // -1: none
    bool quit, failed;
    char error[WIRE_TEXT_MAX];
    bool error_told;

    // The main thread's alone.
    struct unit_task *tasks;  // (units)
    int64_t step, updates;
    int micro, micro_count;
    uint64_t gathers;  // asked for so far
    uint64_t load_round;
    bool *unit_loaded;  // (units) in this round
    int units_loaded;
    bool loaded;
    bool sum_started;    // async: this step's first unit has zeroed the sum in buffers.words
    struct event *told;  // what the host reads of a step has come
    double waited_s;     // the main thread stood still in worker_wait
};

// worker_comm.c
int worker_start(struct worker *w);  // 0 or -1 after logging
void worker_join(struct worker *w);
// The port of the core; the thread that owns the sockets.
void worker_send(void *ctx, int peer, const struct ps_message *message);
void worker_tell_abort(struct worker *w, const char *why);
void worker_command(struct worker *w, const struct command *c);  // any thread
// Makes every wait fail with this text and tells the job; any thread. The first reason is kept.
void worker_give_up(struct worker *w, const char *why);

// Blocks until ready(w, unit) holds under the mutex, at most deadline_ms; the time counts as waited.
// 0, or -1 after logging (once a worker).
struct worker_wait {
    bool (*ready)(const struct worker *w, int u);
    int unit;          // -1: none
    const char *what;  // "weights have not landed"
    bool watched;  // the scheduler decides who is late (it knows who still makes progress): no own deadline
};
int worker_wait(struct worker *w, const struct worker_wait *wait);

#endif
