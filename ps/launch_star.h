// A star's launcher. On one machine one launcher starts all roles as processes of this program, and opens the meeting. Of ranks that
// others have started (torchrun, srun, mpirun), which have met already (shared/launch/joined.h), rank r's process is the launcher of
// worker r and of the servers that are laid beside it. The scheduler is a thread of it, or of rank 0's: it decides what becomes of
// the job where a child has died, and counts restarts.
//
//     launchers      say deaths of children to the scheduler, and look for its verdicts (shared/launch/verdict.h)
//     star/key       where the meeting has no key: the job's (shared/fabric/job_key.h), of rank 0, for the environment of every role
//
// It watches them until the job ends (shared/launch/launch.h).
#ifndef STARRING_PS_LAUNCH_STAR_H
#define STARRING_PS_LAUNCH_STAR_H

#include "shared/launch/run.h"

// topology_row.run. parameter_server.bind becomes an address of this machine that the others reach: loopback where there is one
// machine. Blocks until every process has ended. The program's exit status.
int launch_star(struct run *r);

// A rank's machine: ranks of one machine have the same number, 0, 1, .. in the order of the first rank on each; -1: the rank has not
// come.
struct rank_place {
    const char *host;
    int machine;
};
// Which rank's launcher starts which server, by parameter_server.servers_on:
//
//     hosts         server s: the first rank of machine s mod M
//     workers       rank s
//     h3,1          the first rank of host h3, of machine 1, of h3 again, ..: machines are numbered in the order of the ranks
//
// Writes it to rank_of (servers). 0, or -1 after naming the word of servers_on that is no machine.
int placement_servers(const char *servers_on, const struct rank_place *ranks, int count, int servers,
                      int *rank_of);

#endif
