// The secret of one job on one host: whoever knows it may join. The launcher makes it and hands it to its children by the
// environment, which no other user can read (/proc/PID/environ), and which stays through the exec of a new epoch. It is
// on no command line and in no file of the run. Keys are derived from it with BLAKE2b, so all roles find the same.
#ifndef STARRING_PS_TRUST_JOB_SECRET_H
#define STARRING_PS_TRUST_JOB_SECRET_H

#include <stdint.h>

#include "ps/trust/key_files.h"

#define JOB_SECRET_VARIABLE "STARRING_JOB_SECRET"
#define JOB_SECRET_BYTES    32
#define JOB_SECRET_TEXT_MIN 32  // characters of the variable's value

// Random bytes of the kernel. 0, or -1 after logging.
int job_secret_make(uint8_t secret[JOB_SECRET_BYTES]);
// Of the environment: 1; 0: there is none; -1 after logging: it is too short to be one.
int job_secret_given(uint8_t secret[JOB_SECRET_BYTES]);
// For the children of this process, unless it was given one itself. 0, or -1 after logging.
int job_secret_hand_down(void);
// The pair of a purpose: "scheduler", "member".
void job_secret_pair(const uint8_t secret[JOB_SECRET_BYTES], const char *purpose, struct trust_pair *out);
void job_secret_forget(uint8_t secret[JOB_SECRET_BYTES]);

// A server's token: what its shards ask of whoever connects, where payloads are not encrypted.
#define TRUST_TOKEN_MAX 41                          // 40 characters of Z85 and a zero
int trust_token_make(char token[TRUST_TOKEN_MAX]);  // 0, or -1 after logging

// ---- for roles that people start one by one on one host: the scheduler leaves it in a file that its user
// alone can read (0600), in a directory of that user's (0700): $XDG_RUNTIME_DIR/starring or /tmp/starring-UID (or, where
// another user has taken that name, /tmp/starring-UID.XXXXXX), with the port of the scheduler's address in its name.
// Members of the same user find it by the address they are given.
//
// A scheduler that is started again at a port takes what an earlier one of this user has left there: members that live on
// need no new secret.
//
// Errors: a directory or file that is not this user's own, or that others may read, is refused after logging.

// Of a scheduler at address ("tcp://127.0.0.1:9000"). 1: found; 0: there is none; -1 after logging. An address without
// a port of its own ("tcp://127.0.0.1:*") has none.
int secret_file_find(const char *address, uint8_t secret[JOB_SECRET_BYTES]);
// Leaves it for the members of a scheduler that listens there; one that is there is replaced. The path (malloc'd), or
// NULL after logging.
char *secret_file_leave(const char *bound, const uint8_t secret[JOB_SECRET_BYTES]);
void secret_file_remove(char **path);  // NULL: nothing is done

#endif
