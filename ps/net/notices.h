// The data that a star's scheduler and roles publish at the rendezvous of their job (shared/fabric/rendezvous.h): names,
// values and messages. The scheduler, in the process of member 0, puts values and receives messages; a role reads
// values and sends messages.
//
//     star/now             the open epoch: its number, its job number, the scheduler's address for rounds and its clock
//     star/start/E/ROLE    all are ready: what epoch E resumes from, and who is who. For workers, and for servers
//     star/join/E/W/INC    the same for that process of worker W, which joins the running job (--elastic)
//     star/over/E          epoch E has ended: why, in words. Its roles enter again
//
//     ready     a role has read what it needs for the epoch: its run's identity; a server: its shards' addresses
//     failed    it cannot continue: why
//
// Epoch E + 1 is open before E is over. Messages of an epoch that is over are dropped.
// Pure. Texts arrive from the network: nothing in them is trusted, except that a zero follows them, which the
// rendezvous guarantees. Texts that are written are malloc'd.
#ifndef STARRING_PS_NET_NOTICES_H
#define STARRING_PS_NET_NOTICES_H

#include <stddef.h>
#include <stdint.h>

#include "ps/net/wire.h"
#include "shared/fabric/job_key.h"
#include "shared/fabric/meet.h"

struct checkpoint;

// ---------------------------------------------------------------- names
#define NOTICE_NOW    "star/now"
#define NOTICE_READY  "ready"
#define NOTICE_FAILED "failed"

const char *notice_start_name(char out[MEET_NAME_MAX], uint32_t epoch, enum ps_role role);
const char *notice_join_name(char out[MEET_NAME_MAX], uint32_t epoch, int worker, uint64_t incarnation);
const char *notice_over_name(char out[MEET_NAME_MAX], uint32_t epoch);

// ---------------------------------------------------------------- the roster
// The members of a job and the addresses of its shards, as a start carries them: the only source of
// addresses, tokens and incarnations. A role counts a message in a member's name only with the incarnation in the
// roster, or with one that the scheduler has sent since (WIRE_MEMBER).
//
//     shard INCARNATION ADDRESS TOKEN      a line per shard, in shard order; TOKEN "-": none
//     worker INCARNATION NUMBER            a line per worker; workers, who connect only to shards, get none
#define ROSTER_ADDRESS_MAX 256

struct roster_shard {
    char address[ROSTER_ADDRESS_MAX];
    char token[JOB_TOKEN_MAX];  // "": none
    uint64_t incarnation;       // of its server
};

struct roster_worker {
    uint64_t incarnation;  // 0: no process has the rank
    uint32_t process_no;
};

struct roster {
    int shards, workers;
    struct roster_shard *shard;    // (shards)
    struct roster_worker *worker;  // (workers)
};

struct roster *roster_create(int shards, int workers);
void roster_destroy(struct roster **r);
char *roster_text(const struct roster *r);  // malloc'd
// Returns NULL if the text is no roster of so many shards and workers.
struct roster *roster_read(const char *text, size_t bytes, int shards, int workers);

// Returns whether a message is from shard g, and from the process that the roster has for it. threads: per server.
bool roster_is_shard(const struct roster *r, int g, int threads, const struct wire_header *h);

// The shards of a server that is ready: "ADDRESS TOKEN" per line, TOKEN missing or "-": none. Returns (count) shards
// (malloc'd), or NULL if the text does not have exactly so many such lines.
struct roster_shard *roster_read_shards(const char *text, size_t bytes, int count);
// Appends such a line to out of `room` bytes at *at.
void roster_append_shard(char *out, size_t room, size_t *at, const char *address, const char *token);

// ---------------------------------------------------------------- what the scheduler publishes
struct notice_now {
    uint32_t epoch;                    // the epoch's number: 1, 2, ..
    uint64_t job;                      // never 0; all messages of the epoch carry it
    uint64_t clock;                    // ps_clock_id of the scheduler
    char address[ROSTER_ADDRESS_MAX];  // the scheduler's address for rounds, as bound
};
char *notice_now_text(const struct notice_now *n);
// Returns false if the text is not valid; *out is undefined then, here and below.
bool notice_now_read(const char *text, size_t bytes, struct notice_now *out);

// The point that a job resumes from, as its scheduler finds it.
struct start_point {
    char checkpoint[WIRE_TEXT_MAX];  // absolute path; "": from step 0
    char seal[17];  // checkpoint_seal, which identifies the checkpoint among those of the same name
    int64_t step;   // steps done
};
// Whether this process finds the same checkpoint under that name as the scheduler. Returns 0, or -1 after logging.
int start_point_check(const struct start_point *p, const struct checkpoint *c);

struct notice_start {
    struct start_point from;
    uint32_t process_no;    // the worker's process among those of its rank, 1, 2, ..; 0: never replaced
    struct roster *roster;  // owned by the reader: roster_destroy
};
// workers: the number of workers in the text: all; none in a text for workers if no worker joins or leaves.
char *notice_start_text(const struct notice_start *s);
bool notice_start_read(const char *text, size_t bytes, int shards, int workers, struct notice_start *out);

// ---------------------------------------------------------------- what a role sends
struct notice_ready {
    uint32_t epoch;
    uint64_t manifest;      // its hash (ps/job/manifest.h)
    const char *identity;   // the manifest's text; NULL if the text that was read has none
    const char *endpoints;  // a server's: one line per shard (notices.h); else ""
};
char *notice_ready_text(const struct notice_ready *r);
// out->endpoints points into text, with a zero after it; out->identity is malloc'd, and the caller frees it.
bool notice_ready_read(const char *text, size_t bytes, struct notice_ready *out);

struct notice_failed {
    uint32_t epoch;
    bool lost;  // a peer is missing: a new epoch may help
    char why[WIRE_TEXT_MAX];
};
char *notice_failed_text(const struct notice_failed *f);
bool notice_failed_read(const char *text, size_t bytes, struct notice_failed *out);

#endif
