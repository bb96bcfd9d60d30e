// A star's launcher. On one machine one launcher starts all roles as processes of this program, and opens the
// rendezvous. Other programs (torchrun, srun, mpirun) may have started the ranks, which are then at the rendezvous
// already (shared/launch/joined.h). Rank r's process is then the launcher of worker r and of the servers placed with
// it. The scheduler is a thread of the launcher, or of rank 0's: it decides what a child's death does to the job, and
// counts restarts.
//
//     launchers      report deaths of children to the scheduler, and read its verdicts (shared/launch/verdict.h)
//     star/key       if the rendezvous has no key: the job's (shared/fabric/job_key.h), for every role's environment
//
// It watches them until the job ends (shared/launch/launch.h).
#ifndef STARRING_PS_LAUNCH_STAR_H
#define STARRING_PS_LAUNCH_STAR_H

#include "shared/launch/run.h"

// topology_row.run. parameter_server.bind becomes an address of this machine that the other ranks reach: loopback if
// there is one machine. Blocks until every process has ended. Returns the program's exit status.
int launch_star(struct run *r);

// A rank's machine: ranks of one machine have the same number, 0, 1, .. in the order of the first rank on each; -1: the
// rank has not arrived.
struct rank_place {
    const char *host;
    int machine;
};
// Finds, for each server, the rank whose launcher starts it, by parameter_server.servers_on:
//
//     hosts         server s: the first rank of machine s mod M
//     workers       rank s
//     h3,1          the first rank of host h3, of machine 1, of h3 again, ..: machines are numbered in the order of the ranks
//
// rank_of (servers) receives the ranks. Returns 0, or -1 after naming the word of servers_on that is no machine.
int placement_servers(const char *servers_on, const struct rank_place *ranks, int count, int servers,
                      int *rank_of);

#endif
