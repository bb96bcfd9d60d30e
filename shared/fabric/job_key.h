// The key of a job: secret bytes that all its processes have, and no other process. A process with the key may be any
// rank of the job. A process without it is refused when it connects (curve.h).
//
//     given     STARRING_JOB_KEY in the environment, in hexadecimal digits (`starring keygen` prints one): for ranks that
//               torchrun, srun or mpirun start, and for roles of a star that are started one by one
//     made      by a launcher that starts all on one machine; its children get it in the same variable
//
// No other user can read /proc/PID/environ, and the variable survives an exec. The key is on no command line and in no
// file of the run.
#ifndef STARRING_SHARED_FABRIC_JOB_KEY_H
#define STARRING_SHARED_FABRIC_JOB_KEY_H

#include <stdbool.h>
#include <stdint.h>

#define JOB_KEY_VARIABLE "STARRING_JOB_KEY"
#define JOB_KEY_BYTES    32
#define JOB_KEY_TEXT     (2 * JOB_KEY_BYTES + 1)  // hexadecimal digits and the closing zero
// How a user makes a key, and what is printed if the handshake fails.
#define JOB_KEY_MAKE "export " JOB_KEY_VARIABLE "=$(starring keygen)"
#define JOB_KEY_DIFFERS \
    "the job's key (" JOB_KEY_VARIABLE ") differs there, or one side has none, or another program listens"

struct job_key {
    uint8_t bytes[JOB_KEY_BYTES];
};

// Makes a key from the kernel's random numbers. Returns 0, or -1 after logging.
int job_key_make(struct job_key *out);
// Returns 1; 0 if the environment has no key; -1 after logging that the text is no key.
int job_key_given(struct job_key *out);
// Reads the key that this process uses. Returns 1, or 0 if it is to run without one (insecure). Returns -1 after
// logging that the key is missing or malformed, or that one is given although insecure.
int job_key_open(bool insecure, struct job_key *out);
// Puts a new key in the environment of this process's children, unless a key was given. Returns 0, or -1 after
// logging.
int job_key_hand_down(void);
void job_key_text(const struct job_key *k, char text[JOB_KEY_TEXT]);
void job_key_forget(struct job_key *k);

// Two Curve25519 key pairs, derived from the key with BLAKE2b: one for all listeners, one for all that connect.
#define JOB_PAIR_BYTES 32
struct job_pairs {
    uint8_t listen_public[JOB_PAIR_BYTES], listen_secret[JOB_PAIR_BYTES];
    uint8_t connect_public[JOB_PAIR_BYTES], connect_secret[JOB_PAIR_BYTES];
};
void job_pairs_of(const struct job_key *k, struct job_pairs *out);
void job_pairs_forget(struct job_pairs *p);

// A token: a secret that one listener requires of connections, where nothing is encrypted.
#define JOB_TOKEN_MAX 41                        // hexadecimal digits and the closing zero
int job_token_make(char token[JOB_TOKEN_MAX]);  // Returns 0, or -1 after logging.

#endif
