// How a worker enters the job once all are there, before it pushes anything. Its first requests go over the link: each is said
// once, and open until it is answered.
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

struct entering {
    const struct ps_role_options *role;
    const struct ps_identity *id;
    const struct net_lines *lines;  // to the scheduler and the shards
    struct link *link;              // over them
    struct sharing *sharing;
    const struct roster *roster;
};

// Blocks until every shard has answered, at most the deadline. Where shared memory is demanded and cannot be had, an
// error that names both. 0, or -1 after logging.
int enter_meet_shards(const struct entering *e);

struct joined {
    struct step_opening opening;
    uint64_t gathers;  // that the job has made
};
// Blocks until the scheduler has answered: at most a step of the job. 0, or -1 after logging.
int enter_running_job(const struct entering *e, struct joined *out);

#endif
