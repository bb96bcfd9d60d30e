// The rules of who may join a star, and of what is encrypted there, as far as the configuration decides it.
//
//     security   who may join                        addresses           control   data
//     loopback   processes that have the job's key   this host's alone   CURVE     PLAIN: a token of each server
//     job        processes that have the job's key   any                 CURVE     CURVE
//     insecure   whoever reaches the ports           any                 NULL      NULL
//
// Control is what goes to and from the scheduler, data what goes to and from a server's shards. Payloads are not
// encrypted on loopback: who may read that interface may read the processes' memory too. A server that has a token names it
// where it says that it is ready, so each connection is as its server wants it.
#ifndef STARRING_PS_JOB_SECURITY_H
#define STARRING_PS_JOB_SECURITY_H

#include "shared/config/config.h"

enum ps_security { PS_LOOPBACK, PS_JOB, PS_INSECURE };

enum ps_security ps_security_of(const struct config *c);
const char *ps_security_name(const struct config *c);  // "loopback", ..
// The same with a sentence of what it means for the run, for its header and for whoever starts a scheduler.
const char *ps_security_words(const struct config *c);

// Whether only this host reaches an address: "tcp://127.0.0.1:9000", "localhost", "[::1]", "ipc://..".
bool ps_is_local(const char *address);

#endif
