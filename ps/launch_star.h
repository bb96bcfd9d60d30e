// The star on one machine: starts the scheduler, the servers and the workers as processes of this
// program and watches them until the job ends (launch.h).
#ifndef STARRING_PS_LAUNCH_STAR_H
#define STARRING_PS_LAUNCH_STAR_H

#include "shared/train/session.h"

// DIR/config.json is written already. Blocks until every process has ended. The job's exit status; 0 also
// when it ended in order after Ctrl-C or SIGTERM, whose number is then in *interrupted_by (else 0).
int launch_star(const struct job *job, int *interrupted_by);

#endif
