// A worker's part in the step that opens, which it is told with STEP_DONE of the step before it, or JOINED. Pure.
#ifndef STARRING_PS_AGREE_DEAL_H
#define STARRING_PS_AGREE_DEAL_H

#include "ps/agree/step_set.h"
#include "ps/net/wire.h"

struct step_deal {
    uint64_t members;  // 0: there are no common steps (async)
    int contributors;  // of the step before; 0: none
    struct train_state state;
};

// Where worker `worker`'s slice begins, `own` samples a slice. The worker is a member, or all are (members 0).
static inline int64_t deal_first(const struct step_deal *d, int worker, int64_t own) {
    return d->state.dealt + own * elastic_place(d->members, worker);
}

// Fields mask and values of the header.
void deal_write(const struct step_deal *d, struct wire_header *h);
// The step is the header's. 0, or -1 where the header holds no deal.
int deal_read(const struct wire_header *h, struct step_deal *d);

#endif
