// The time of a server's shard threads, added up for the report and written for pictures. A shard's thread is at
//
//     receive   taking messages off the sockets      update   the optimizer; new weights in their place
//     sum       adding, rounding, squares            reply    answers: acknowledgements, weights, sums
//     idle: hold, while there are gradients of a step that waits for more of them or for the scheduler's decision;
//     wait, while there is nothing
#ifndef STARRING_PS_SERVER_SERVER_TIME_H
#define STARRING_PS_SERVER_SERVER_TIME_H

#include "ps/job/shard_map.h"
#include "ps/net/login.h"
#include "shared/report/rank_report.h"
#include "shared/time/thread_time.h"

enum server_part {
    SERVER_RECEIVE,
    SERVER_SUM,
    SERVER_HOLD,
    SERVER_WAIT,
    SERVER_UPDATE,
    SERVER_REPLY,
    SERVER_PARTS
};

#define SERVER_PICTURED 3  // steps of the run's end in a server's timeline

// Of a shard; the thread's, until it has ended. Never NULL.
struct thread_time *server_thread_time(const struct config *c, const struct shard_map *map, int shard);
// Adds a shard's time to its server's.
void server_time_add(struct server_time *sum, const struct thread_time *t);
// Leaves the spans of server id->rank in the run directory. shards: (count), a thread's each. 0, or -1 after logging.
struct server_time_files {
    const struct config *config;
    const struct shard_map *map;
    const struct ps_identity *id;
    const char *dir;  // NULL: nothing is written
    struct thread_time **shards;
    int count;
};
int server_time_write(const struct server_time_files *f);

#endif
