// Starts the servers and the workers of a star as processes of this program and watches them until the job ends (launch.h): all of
// them, or, where others have started the ranks, those of this rank (star_ranks.h). The scheduler is a thread of this process, or
// of rank 0's: it decides what becomes of the job where a child has died, and counts restarts (verdict.h).
#ifndef STARRING_PS_LAUNCH_STAR_H
#define STARRING_PS_LAUNCH_STAR_H

#include "shared/launch/run.h"

// DIR/config.json is written already. Blocks until every process has ended. The job's exit status; 0 also
// when it ended in order after Ctrl-C or SIGTERM, whose number is then in *interrupted_by (else 0).
int launch_star(struct run *r, int *interrupted_by);

#endif
