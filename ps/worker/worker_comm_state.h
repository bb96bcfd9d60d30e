// What a worker's communication thread and its main thread share: for worker_comm.c, and worker_login.c, which has what
// comes before the thread.
#ifndef STARRING_PS_WORKER_WORKER_COMM_STATE_H
#define STARRING_PS_WORKER_WORKER_COMM_STATE_H

#include <pthread.h>

#include "ps/consistency.h"
#include "ps/net/link.h"
#include "ps/worker/snapshot_pulls.h"
#include "ps/worker/worker_comm.h"
#include "ps/worker/worker_times.h"

struct pulse;

struct comm {
    struct comm_options o;
    const struct config *c;
    struct consistency_rule rule;
    struct ps_identity id;
    struct joined joined;  // where id.joins
    struct net *net;
    struct net_socket *scheduler;
    struct net_socket **shards;  // (map->shards)
    struct link *link;           // to the scheduler and the shards; from the login on
    struct roster *roster;       // once the job has started
    struct worker_core *core;
    struct snapshot_pulls *snapshots;
    struct worker_times *times;
    struct thread_time *spans;  // NULL: no trace
    pthread_t thread;
    bool thread_started;
    int taken;  // commands since the last publishing; the communication thread's
    int wake_fd;
    _Atomic uint64_t turns;  // of the communication thread
    _Atomic pid_t tid;       // its number
    struct pulse *pulse;

    pthread_mutex_t mutex;
    pthread_cond_t changed;    // published or failed
    struct command *commands;  // guarded by mutex, as all below
    int command_count, command_capacity;
    struct published now;
    int64_t *landed;  // (units)
    int *busy;        // (units)
    bool collecting;  // a snapshot is under way
    int unobeyed;     // commands whose effect is not published yet
    uint64_t gathers_asked;
    bool waiting;  // for:
    enum comm_event waited_event;
    int waited_unit;  // -1: none
    int64_t waited_step;
    char waiting_for[192];  // what that unit lacks
    bool quit, failed;
    char lost[WIRE_TEXT_MAX];  // what has not come although restarts are left, to be said; "": nothing
    struct thread_time *left;  // for the main thread to write (COMMAND_TRACE)
    char error[WIRE_TEXT_MAX];
    bool error_logged;
};

// What the link is made from: how it sends, and whether a payload is still to be said. arg: struct comm.
void comm_send(void *comm, int peer, const struct ps_message *m);
bool comm_renew(void *comm, int peer, struct ps_message *m);
// Logs in, connects to every shard and meets it. 0, or -1 after logging; the scheduler has been told then.
int comm_join_job(struct comm *c);

#endif
