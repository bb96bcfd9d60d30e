#include "shared/launch/still.h"

#include "shared/supervise/proc_look.h"

double still_look(struct still *s, pid_t pid, double now, bool *stopped) {
    struct proc_look look;
    bool waits = false;
    *stopped = false;
    if (proc_look(pid, &look)) return 0;
    uint64_t runs = proc_runs(pid, &waits);
    *stopped = look.state == 'T' || look.state == 't';
    // Where nothing is known of its threads, what is stopped is known all the same.
    bool moves = runs ? runs != s->runs : !*stopped;
    if (moves || waits || !s->since_s) s->since_s = now;
    s->runs = runs;
    return now - s->since_s;
}
