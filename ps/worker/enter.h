// How a worker enters the job before its first push. It finds the open epoch, reports that it is ready, waits until all
// ranks are, and connects to the shards. The link delivers its first requests once each and resends them until they are
// answered.
//
//     ATTACH 1, its segment   --> shard    ATTACHED 1: the two share memory; or HELD, and why they do not:
//     ATTACH 2, nothing       --> shard    ATTACHED 2: frames travel
//
// After that it joins a job that is under way (--elastic), for the next step:
//
//     JOIN  --> scheduler    JOINED: the first step that it belongs to, its samples, the state of the training loop
//     PULL of that step, to every key --> weights, once the step before it has been committed
//
// The other workers wait for it from JOINED on.
#ifndef STARRING_PS_WORKER_ENTER_H
#define STARRING_PS_WORKER_ENTER_H

#include "ps/agree/step_set.h"
#include "ps/net/member.h"
#include "ps/worker/sharing.h"

// All of this outlives the struct entry made with it.
struct enter_options {
    const struct ps_role_options *role;
    const struct shard_map *map;
    struct sharing *sharing;
    struct wire_count *wire;
    bool (*renew)(void *ctx, int peer, struct ps_message *m);  // becomes star_link_options.renew
    void *ctx;
};

struct joined {
    struct step_opening opening;
    uint64_t gathers;  // the number of gathers that the job has done
};

// It must not move: the link keeps its address.
struct entry {
    struct enter_options o;
    struct ps_identity id;
    struct notice_start start;
    struct joined joined;  // set if id.joins
    struct net *net;
    struct net_lines lines;  // to the scheduler and (map->shards) the shards
    struct link *link;       // over these lines
};
// e: zeroed by the caller. Blocks until all ranks are ready and every shard has answered. The shards have one deadline
// to answer. If shared memory is demanded and impossible, the error names both processes. Returns 0, or -1 after
// logging; call entry_free in both cases.
int enter(const struct enter_options *o, struct entry *e);
void entry_free(struct entry *e);  // Called after net_destroy.

#endif
