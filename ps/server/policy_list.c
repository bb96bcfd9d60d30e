#include "ps/server/policy_list.h"

#include <assert.h>

#include "ps/job/push_code.h"

#define AS_POINTER(value, name) &push_##name,
#define AS_WORD(value, name)    #name,

static const struct push_policy *const policies[] = {NULL, PUSH_POLICIES(AS_POINTER)};

const struct push_policy *push_policy_named(const struct consistency_rule *rule, const char **name) {
    static const char *const names[] = {NULL, PUSH_POLICIES(AS_WORD)};
    if (name) *name = names[rule->row->policy];
    return policies[rule->row->policy];
}

const struct push_policy *push_policy_of(const struct config *c, const struct consistency_rule *rule,
                                         bool replays) {
    const struct push_policy *p = push_policy_named(rule, NULL);
    if (ps_by_units(c))
        p = policies[p->by_units];
    else if (consistency_drops(*rule) || ps_elastic(c))
        p = policies[p->in_part];
    else if (replays)
        p = policies[p->replayed];
    assert(p && "the star's check refuses the setting");
    return p;
}

const struct push_policy *push_policy_configured(const struct config *c) {
    const struct consistency_rule rule = consistency_of(c);
    return push_policy_of(c, &rule, c->ps.replay_arrivals != NULL);
}

const char *push_policy_refuses(const struct push_policy *p, const struct config *c) {
    if (ps_by_units(c) && !p->by_units) return "--resident units";
    if (ps_elastic(c) && !p->in_part) return "--elastic";
    if (c->ps.record_arrivals && !p->replayed) return "--record-arrivals";
    if (c->ps.replay_arrivals && !p->replayed) return "--replay-arrivals";
    if (ps_codes(c) && !p->codes) return "parameter_server.compression";
    if (c->reduce_group != GROUP_NONE && !p->groups) return "reduce_group";
    return NULL;
}
