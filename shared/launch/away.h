// DIR/away.jsonl: which workers of a job that may do without them (--elastic) were away, a line when one goes and one when
// it is back. A star's scheduler writes it.
//
//   {"step":13,"worker":1,"away":true,"cause":"died","why":"worker 1 (pid 77) was killed by signal 9 (Killed)"}
//   {"step":20,"worker":1,"away":false,"cause":null,"why":null}
#ifndef STARRING_SHARED_LAUNCH_AWAY_H
#define STARRING_SHARED_LAUNCH_AWAY_H

#include <stdbool.h>
#include <stdint.h>

struct away {
    int64_t step;  // 1, 2, ..: the first without it, or with it again
    int worker;
    bool away;
    const char *cause, *why;  // NULL where it is back
};

// Adds a line. A disk that does not take it costs the job a warning, and the summary this absence.
void away_add(const char *dir, const struct away *a);
// A new run begins in dir.
void away_forget(const char *dir);
// The run goes on behind so many steps, with all workers: lines of later steps go, and who was away is back. 0: it begins.
// The same of a disk that does not take it.
void away_cut(const char *dir, int64_t steps);

#endif
