// The key of a job: bytes that all its processes have, and nobody else. Who has it may be any rank of the job; who has it
// not is shut out where he connects (curve.h).
//
//     given     STARRING_JOB_KEY in the environment, in hexadecimal digits (`starring keygen` prints one): for ranks that
//               torchrun, srun or mpirun start, and for the roles of a star that people start one by one
//     made      by a launcher that starts all on one machine; its children have it in the same variable
//
// No other user can read /proc/PID/environ, and the variable stays through an exec. The key is on no command line and in no
// file of the run.
#ifndef STARRING_SHARED_FABRIC_JOB_KEY_H
#define STARRING_SHARED_FABRIC_JOB_KEY_H

#include <stdbool.h>
#include <stdint.h>

#define JOB_KEY_VARIABLE "STARRING_JOB_KEY"
#define JOB_KEY_BYTES    32
#define JOB_KEY_TEXT     (2 * JOB_KEY_BYTES + 1)  // its digits and a zero
// How a user makes one, and what he is told where it does not open the door.
#define JOB_KEY_MAKE "export " JOB_KEY_VARIABLE "=$(starring keygen)"
#define JOB_KEY_DIFFERS \
    "the job's key (" JOB_KEY_VARIABLE ") differs there, or one side has none, or another program listens"

struct job_key {
    uint8_t bytes[JOB_KEY_BYTES];
};

int job_key_make(struct job_key *out);  // of the kernel's random numbers; 0, or -1 after logging
int job_key_given(
    struct job_key *out);  // 1; 0: the environment has none; -1 after logging: it has something else
// The key that a process speaks with, or that it is to speak without (insecure): 1; 0; -1 after logging: there is none, it
// is none, or there is one all the same.
int job_key_open(bool insecure, struct job_key *out);
// For the children of this process, unless it was given one itself. 0, or -1 after logging.
int job_key_hand_down(void);
void job_key_text(const struct job_key *k, char text[JOB_KEY_TEXT]);
void job_key_forget(struct job_key *k);

// Two pairs of Curve25519, derived from the key with BLAKE2b: that of all who listen, and that of all who connect.
#define JOB_PAIR_BYTES 32
struct job_pairs {
    uint8_t listen_public[JOB_PAIR_BYTES], listen_secret[JOB_PAIR_BYTES];
    uint8_t connect_public[JOB_PAIR_BYTES], connect_secret[JOB_PAIR_BYTES];
};
void job_pairs_of(const struct job_key *k, struct job_pairs *out);
void job_pairs_forget(struct job_pairs *p);

// A token: what one listener asks of whoever connects, where nothing is encrypted.
#define JOB_TOKEN_MAX 41                        // its digits and a zero
int job_token_make(char token[JOB_TOKEN_MAX]);  // 0, or -1 after logging

#endif
