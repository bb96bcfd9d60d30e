#include "ps/scheduler/turns.h"

#include "ps/agree/step_set.h"

void turns_ready(struct turns *t, int worker) { t->waiting |= elastic_bit(worker); }

void turns_over(struct turns *t, int worker) { t->over |= elastic_bit(worker); }

uint64_t turns_next(struct turns *t, int64_t *update) {
    uint64_t set = t->waiting;
    bool alone = elastic_count(set | t->over) == t->workers;
    if (!set || (elastic_count(set) < t->per_update && !alone)) return 0;
    t->waiting = 0;
    *update = t->sets++;
    return set;
}
