// Starts the scheduler, the servers and the workers of a star as processes of this program and watches them until the job ends
// (launch.h): all of them, or, where others have started the ranks, those of this rank (star_ranks.h).
#ifndef STARRING_PS_LAUNCH_STAR_H
#define STARRING_PS_LAUNCH_STAR_H

#include "shared/launch/run.h"

// DIR/config.json is written already. Blocks until every process has ended. The job's exit status; 0 also
// when it ended in order after Ctrl-C or SIGTERM, whose number is then in *interrupted_by (else 0).
int launch_star(struct run *r, int *interrupted_by);

#endif
