#include "ps/scheduler/absences.h"

#include <stdio.h>
#include <stdlib.h>

#include "ps/agree/step_set.h"
#include "shared/core/error.h"

#define WHY_MAX 512

struct reason {
    const char *cause;
    char why[WHY_MAX];
};

struct absences {
    struct absence_port port;
    int workers;
    uint64_t away;
    struct reason *reasons;  // (workers) of the last loss
};

struct absences *absences_create(int workers, const struct absence_port *port) {
    struct absences *a = xcalloc(1, sizeof *a);
    *a = (struct absences){.port = *port, .workers = workers};
    a->reasons = xcalloc((unsigned long)workers, sizeof *a->reasons);
    return a;
}

void absences_destroy(struct absences **at) {
    if (!*at) return;
    free((*at)->reasons);
    free(*at);
    *at = NULL;
}

void absences_lost(struct absences *a, int worker, const struct loss *loss) {
    struct reason *r = &a->reasons[worker];
    if (a->away & elastic_bit(worker)) return;  // another process of its rank, that has not come so far
    r->cause = loss->cause;
    snprintf(r->why, sizeof r->why, "%s", loss->why);
}

void absences_step(struct absences *a, int64_t step, uint64_t there) {
    uint64_t away = elastic_all(a->workers) & ~there, changed = away ^ a->away;
    a->away = away;
    for (int w = 0; w < a->workers && a->port.changed; w++) {
        struct absence x = {.step = step, .worker = w, .away = (away & elastic_bit(w)) != 0};
        if (!(changed & elastic_bit(w))) continue;
        if (x.away) x.loss = (struct loss){a->reasons[w].cause, a->reasons[w].why};
        a->port.changed(a->port.ctx, &x);
    }
}
