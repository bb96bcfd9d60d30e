// The job's secret for roles that people start one by one on one host: the scheduler leaves it in a file that its user
// alone can read (0600), in a directory of that user's (0700): $XDG_RUNTIME_DIR/starring or /tmp/starring-UID (or, where
// another user has taken that name, /tmp/starring-UID.XXXXXX), with the port of the scheduler's address in its name.
// Members of the same user find it by the address they are given.
//
// A scheduler that is started again at a port takes what an earlier one of this user has left there: members that live on
// need no new secret.
//
// Errors: a directory or file that is not this user's own, or that others may read, is refused after logging.
#ifndef STARRING_PS_TRUST_SECRET_FILE_H
#define STARRING_PS_TRUST_SECRET_FILE_H

#include "ps/trust/job_secret.h"

// Of a scheduler at address ("tcp://127.0.0.1:9000"). 1: found; 0: there is none; -1 after logging. An address without
// a port of its own ("tcp://127.0.0.1:*") has none.
int secret_file_find(const char *address, uint8_t secret[JOB_SECRET_BYTES]);
// Leaves it for the members of a scheduler that listens there; one that is there is replaced. The path (malloc'd), or
// NULL after logging.
char *secret_file_leave(const char *bound, const uint8_t secret[JOB_SECRET_BYTES]);
void secret_file_remove(char **path);  // NULL: nothing is done

#endif
