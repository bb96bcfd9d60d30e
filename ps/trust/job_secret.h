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

#endif
