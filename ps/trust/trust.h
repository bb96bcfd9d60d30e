// The rule of who may join a star, decided in one place: by the keys that the user gave, or by the job's secret. What a decision is
// made of lies in key_files.h and job_secret.h; ps/net/net.c makes proofs and rules of it.
//
//     mode       who may join                              addresses            control            data
//     loopback   processes that know the job's secret      this host's alone    CURVE              PLAIN, a token a server
//     job        processes that know the job's secret      any                  CURVE              CURVE
//     curve      keys of public.keys, each as its role     any                  CURVE              CURVE
//     insecure   whoever reaches the ports                 any                  NULL               NULL
//
// The secret of mode job is in the environment of every role: the launchers of ranks on several machines hand it to each other
// (ps/launch_star.c), and parameter_server.bind is an address of theirs.
//
// Control is what goes to and from the scheduler, data what goes to and from a server's shards. Payloads are not
// encrypted on loopback: who may read that interface may read the processes' memory too.
//
// No sockets. Opened once for a process (or a thread that plays a role), then constant: any thread may look things up.
#ifndef STARRING_PS_TRUST_TRUST_H
#define STARRING_PS_TRUST_TRUST_H

#include "ps/trust/job_secret.h"
#include "ps/trust/key_files.h"
#include "shared/config/config.h"

enum trust_mode { TRUST_LOOPBACK, TRUST_JOB, TRUST_CURVE, TRUST_INSECURE };
const char *trust_mode_name(enum trust_mode m);  // "loopback", ..
// The same with a sentence of what it means for the run, for its header and for whoever starts a scheduler.
const char *trust_mode_words(enum trust_mode m);
// The mode that the configuration asks for; whether its addresses go with it, trust_mode_of says.
enum trust_mode trust_mode_asked(const struct config *c);

// The name of whoever knows the job's secret: it may be any worker or server.
#define TRUST_MEMBER "member"

struct ps_trust {
    enum trust_mode mode;
    struct trust_owner self;             // curve: rank is known
    struct trust_pair own;               // none where insecure
    uint8_t scheduler[TRUST_KEY_BYTES];  // its public key
    uint8_t member[TRUST_KEY_BYTES];     // loopback, job: the public key of every member
    struct allow_list *list;             // curve
    const char *dir;                     // curve: of the keys; the configuration's
    uint8_t secret[JOB_SECRET_BYTES];    // loopback, job
    bool given;                          // it came by the environment
    char *file;                          // that it was left in for members started by hand; NULL: none
};

// The action that a role is about to take.
struct trust_request {
    const struct config *config;
    enum ps_role role;        // PS_SCHEDULER, PS_SERVER or PS_WORKER
    int rank;                 // -1: any; the scheduler's is 0
    const char *address;      // of the scheduler, to listen on or to connect to
    const char *advertise;    // a server's, or NULL
    const _Atomic int *stop;  // ends a wait; NULL: nothing does
};

// Whether only this host reaches an address: "tcp://127.0.0.1:9000", "localhost", "[::1]", "ipc://..".
bool trust_is_local(const char *address);
// The mode; -1 after logging: an address that others reach, without keys and without --insecure, or both of them given.
int trust_mode_of(const struct trust_request *r, enum trust_mode *out);
// Of a launcher that starts all roles of a job with --keys: whether the directory has the key of each. 0, or -1 after
// logging.
int trust_check_keys(const struct config *c);
// Reads the keys, or finds the secret. A member started by hand waits for the scheduler's, until the login's deadline.
// 0, or -1 after logging.
int trust_open(struct ps_trust *t, const struct trust_request *r);
// A scheduler started by hand has its address: members of the same user find its secret by it (job_secret.h). 0 or -1.
int trust_leave(struct ps_trust *t, const char *bound);
// Overwrites what is secret; removes the file.
void trust_close(struct ps_trust *t);

// The name of a public key's owner, for ZAP's user id; false: it may not join.
bool trust_admits(const struct ps_trust *t, const uint8_t key[TRUST_KEY_BYTES], char name[TRUST_NAME_MAX]);
// The key that this role shows to others, and the one that it knows the scheduler by, for people: "the key keys/worker-1.key of worker 1",
// "the secret of this job" (malloc'd).
char *trust_own_words(const struct ps_trust *t);
char *trust_peer_words(const struct ps_trust *t);

// Whether who has that name may speak as this role and rank. A server's key speaks for its shards too.
bool trust_may_speak(const char *name, enum ps_role role, int rank);
// The public key of a server, which a client of its shards asks for; curve and job. NULL: public.keys has none.
const uint8_t *trust_server_key(const struct ps_trust *t, int server);

#endif
