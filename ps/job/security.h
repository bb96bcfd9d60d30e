// Which processes may join a star, and what is encrypted there, as the configuration decides it.
//
//     security   who may join                        addresses           control   data
//     loopback   processes that have the job's key   only this host's    CURVE     PLAIN: a token of each server
//     job        processes that have the job's key   any                 CURVE     CURVE
//     insecure   any that reaches the ports          any                 NULL      NULL
//
// Control is what the scheduler sends and receives, data what a server's shards send and receive. Payloads are not
// encrypted on loopback: a user who may read that interface may read the processes' memory too. A server that has a
// token publishes it when it is ready, so each connection is as its server demands.
#ifndef STARRING_PS_JOB_SECURITY_H
#define STARRING_PS_JOB_SECURITY_H

#include "shared/config/config.h"

enum ps_security { PS_LOOPBACK, PS_JOB, PS_INSECURE };

enum ps_security ps_security_of(const struct config *c);
const char *ps_security_name(const struct config *c);  // "loopback", ..
// The same with a sentence about what it means, for the run's header and for the user who starts a scheduler.
const char *ps_security_words(const struct config *c);

#endif
