// Which policy a job's pushes follow (push_policy.h).
#ifndef STARRING_PS_SERVER_POLICY_LIST_H
#define STARRING_PS_SERVER_POLICY_LIST_H

#include "ps/job/consistency.h"
#include "ps/server/push_policy.h"

const struct push_policy *push_policy_of(const struct config *c, const struct consistency_rule *rule,
                                         bool replays);
// The same policy, found from the configuration before a core exists.
static inline const struct push_policy *push_policy_configured(const struct config *c) {
    const struct consistency_rule rule = consistency_of(c);
    return push_policy_of(c, &rule, c->ps.replay_arrivals != NULL);
}

#endif
