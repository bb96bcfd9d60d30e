#include "ps/server/policy_list.h"

#include <assert.h>

#define AS_POINTER(name) &name,

const struct push_policy *push_policy_of(const struct config *c, const struct consistency_rule *rule,
                                         bool replays) {
    static const struct push_policy *const policies[] = {PUSH_POLICIES(AS_POINTER)};
    for (size_t i = 0; i < sizeof policies / sizeof *policies; i++)
        if (policies[i]->fits(c, rule, replays)) return policies[i];
    assert(!"no policy fits");
    return NULL;
}
