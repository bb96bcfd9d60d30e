#include "shared/launch/launch_state.h"

#include <signal.h>

#include "shared/core/error.h"

void launcher_signal_all(struct launcher *l, int number) {
    for (int i = 0; i < l->count; i++)
        if (l->children[i].pid) kill(l->children[i].pid, number);
}

void launcher_end_rest(struct launcher *l) {
    if (l->kill_at_s > 0) return;
    l->kill_at_s = now_seconds() + l->o.grace_s;
    launcher_signal_all(l, SIGTERM);
}

bool launcher_has_begun(const struct launcher *l) { return l->o.last_step && l->o.last_step(l->o.ctx) > 0; }
