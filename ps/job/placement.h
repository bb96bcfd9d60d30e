// Which rank's launcher starts which role of a star, where others have started the ranks: rank r starts worker r, rank 0 the
// scheduler too, and servers go where parameter_server.servers_on says. Pure.
//
//     servers_on    server s is started by
//     hosts         the first rank of machine s mod M
//     workers       rank s
//     h3,1          the first rank of host h3, of machine 1, of h3 again, ..: machines are numbered in the order of the ranks
#ifndef STARRING_PS_JOB_PLACEMENT_H
#define STARRING_PS_JOB_PLACEMENT_H

// A rank's machine: ranks of one machine have the same number, 0, 1, .. in the order of the first rank on each; -1: the rank has not
// come.
struct rank_place {
    const char *host;
    int machine;
};

// Writes to rank_of (servers) the rank that starts each. 0, or -1 after naming the word of servers_on that is no machine.
int placement_servers(const char *servers_on, const struct rank_place *ranks, int count, int servers,
                      int *rank_of);

#endif
