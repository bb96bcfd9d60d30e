// A worker comes to a job that is under way (--elastic): it has logged in and met the servers, and asks to belong to the
// next step.
//
//     HELLO --> WELCOME (its life) --> START (JOINS: the job is under way) --> the servers' memory (ps/worker/attach.h)
//     JOIN            --> JOINED: the step from which on it belongs, its samples, what the loop knows by then
//     PULL of that step, to every key --> weights, once the step before it has been committed
//
// The others wait for it from JOINED on.
#ifndef STARRING_PS_AGREE_JOIN_H
#define STARRING_PS_AGREE_JOIN_H

#include "ps/agree/deal.h"
#include "ps/net/login.h"

struct joined {
    struct step_deal deal;
    uint64_t gathers;  // that the job has made
};

// Blocks until the scheduler has answered: at most a step of the job. link: to it. 0, or -1 after logging.
int join_running(const struct ps_login *l, const struct ps_identity *id, struct link *link,
                 struct joined *out);

#endif
