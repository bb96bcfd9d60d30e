// How a worker enters the job, before it pushes anything: it finds the open epoch, says that it is ready, waits until all are, and
// connects to the shards. Its first requests go over the link: each is said once, and open until it is answered.
//
//     ATTACH 1, its segment   --> shard    ATTACHED 1: the two share memory; or HELD, and why they do not:
//     ATTACH 2, nothing       --> shard    ATTACHED 2: frames travel
//
// A job that is under way (--elastic) is joined behind that, for the next step:
//
//     JOIN  --> scheduler    JOINED: the step from which on it belongs, its samples, what the loop knows by then
//     PULL of that step, to every key --> weights, once the step before it has been committed
//
// The others wait for it from JOINED on.
#ifndef STARRING_PS_WORKER_ENTER_H
#define STARRING_PS_WORKER_ENTER_H

#include "ps/agree/step_set.h"
#include "ps/net/member.h"
#include "ps/worker/sharing.h"

// All outlives what has entered.
struct entering {
    const struct ps_role_options *role;
    const struct shard_map *map;
    struct sharing *sharing;
    struct wire_count *wire;
    bool (*renew)(void *ctx, int peer, struct ps_message *m);  // the link's
    void *ctx;
};

struct joined {
    struct step_opening opening;
    uint64_t gathers;  // that the job has made
};

// It stays where it is: the link has its address.
struct entered {
    struct entering o;
    struct ps_identity id;
    struct meeting_start start;
    struct joined joined;  // where id.joins
    struct net *net;
    struct net_lines lines;  // to the scheduler and (map->shards) the shards
    struct link *link;       // over them
};
// e: zeros. Blocks until all are there and every shard has answered, which takes it a deadline at most. Where shared memory is
// demanded and cannot be had, an error that names both. 0, or -1 after logging; entered_free either way.
int enter(const struct entering *o, struct entered *e);
void entered_free(struct entered *e);  // after net_destroy

#endif
