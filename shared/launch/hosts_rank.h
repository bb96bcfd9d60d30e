// The side of a rank that launch_hosts.h has started: standard input is its launcher's word.
//
//     key HEX              STARRING_JOB_KEY
//     life K JOB WHY       the job may be started again: this is its K-th life, after that death
//     go
//     signal N             as if it had come here, as often as it likes
//     the end              the connection has gone: this process ends at once
#ifndef STARRING_SHARED_LAUNCH_HOSTS_RANK_H
#define STARRING_SHARED_LAUNCH_HOSTS_RANK_H

#include <stdbool.h>

struct run;

// Whether this process is one.
bool hosts_rank(void);
// Hears the first words, into r and the environment, and begins to listen for more. 0, or -1 after logging.
int hosts_rank_begin(struct run *r);

#endif
