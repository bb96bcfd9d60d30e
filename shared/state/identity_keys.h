// Every key of a run's identity and of the configuration, and who must agree on it. A new key of the configuration takes a
// row here: compared, or not, and why.
#ifndef STARRING_SHARED_STATE_IDENTITY_KEYS_H
#define STARRING_SHARED_STATE_IDENTITY_KEYS_H

#include <stdbool.h>

enum identity_use {
    // Who continues from a checkpoint must have the same: another value is another run.
    IDENTITY_TRAJECTORY = 1,
    // All ranks of a run must have the same.
    IDENTITY_RUN = 2,
    // A continued run may have another value, and then ends in other bits than the undisturbed one. A key that is
    // neither here nor in IDENTITY_TRAJECTORY moves no bit.
    IDENTITY_BITS = 4,
    // Known to those alone that compute (workers): servers and a scheduler open no data and have no such device. It is
    // compared where both sides know it.
    IDENTITY_LOCAL = 8
};

struct identity_key {
    const char *key;
    unsigned uses;       // of enum identity_use; 0: nobody compares it
    bool configured;     // a key of the configuration; else identity.c knows it, or who calls identity_put
    const char *advice;  // for ranks that differ in it; NULL: to use one configuration
};
// The row of a key. One that is in no row must agree everywhere: what another version of the program has compared is not
// passed over.
const struct identity_key *identity_key(const char *key);
const struct identity_key *identity_key_at(int i);  // NULL: there are no more

#endif
