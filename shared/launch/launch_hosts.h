// A run whose ranks this program starts on other hosts: each is the child of a connection that ssh makes (`--hosts`, `--hostfile`).
//
//     starring train --hosts h1:2,h2 ..                                  this process: labels what they print, names who dies
//      ├─ ssh h1   cd HERE && RANK=0 WORLD_SIZE=3 .. starring train ..   stands for the run: its directory, its table
//      ├─ ssh h1   cd HERE && RANK=1 ..
//      └─ ssh h2   cd HERE && RANK=2 ..
//
// Ranks find each other as those that torchrun starts do, by its variables: MASTER_ADDR is the first host's name as it was
// given, MASTER_PORT this environment's, or a random one below those that kernels give away. Their key (STARRING_JOB_KEY) is a
// random number of each life; it goes through ssh's standard input, where also requests to end come from, and whose end is the
// end of the rank (shared/launch/hosts_rank.h).
//
// The program is asked for with the path that it has here, and started in the folder of the same name as here; with --stage
// program, model, data and configuration are copied to a folder that goes again (shared/launch/stage.h).
//
// What ranks say on standard error, and on standard output all but rank 0, is labelled: "[h2:1] ..", the host and the rank
// there. Standard output of rank 0 is the run's, as it is.
//
// The ranks live and die together, as those of launch_ranks.h; with --restart all are started again. With --elastic the
// others go on where one but rank 0 dies, until rank 0 has ended, and --restart is of the roles that each rank starts. STARRING_SSH is the
// command that makes a connection, with options: "ssh -p 2222 -i key"; the default asks for no password, and notices a host
// that has vanished.
#ifndef STARRING_SHARED_LAUNCH_LAUNCH_HOSTS_H
#define STARRING_SHARED_LAUNCH_LAUNCH_HOSTS_H

#include "shared/launch/hosts.h"
#include "shared/launch/run.h"

struct launch_hosts_options {
    const struct run *run;
    const struct hosts *hosts;
    bool stage;
    int argc;  // the words behind "train"
    char *const *argv;
};

// The program's exit status.
int launch_hosts(const struct launch_hosts_options *o);

#endif
