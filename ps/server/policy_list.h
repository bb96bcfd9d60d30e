// Which policy a job's pushes follow (push_policy.h).
#ifndef STARRING_PS_SERVER_POLICY_LIST_H
#define STARRING_PS_SERVER_POLICY_LIST_H

#include "ps/server/push_policy.h"

// The policy that the consistency's row names: its settings apply, whichever takes its place.
const struct push_policy *push_policy_named(const struct consistency_rule *rule, const char **name);
// The policy that a job uses. replays: the run repeats a recording.
const struct push_policy *push_policy_of(const struct config *c, const struct consistency_rule *rule,
                                         bool replays);
// The same policy, found from the configuration before a core exists.
const struct push_policy *push_policy_configured(const struct config *c);
// A setting of the configuration that the policy does not support, as it is printed; NULL: it supports them all.
const char *push_policy_refuses(const struct push_policy *policy, const struct config *c);

#endif
