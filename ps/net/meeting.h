// The data that a star's scheduler and roles publish at the rendezvous of their job (shared/fabric/rendezvous.h): names,
// values and messages. The scheduler, in the process of member 0, puts values and receives messages; a role reads
// values and sends messages.
//
//     star/now             the open epoch: its number, its job number, the scheduler's address for rounds and its clock
//     star/start/E/ROLE    all are ready: what epoch E resumes from, and who is who. For workers, and for servers
//     star/join/E/W/LIFE   the same for that process of worker W, which joins the running job (--elastic)
//     star/over/E          epoch E has ended: why, in words. Its roles enter again
//
//     ready     a role has read what it needs for the epoch: its run's identity; a server: its shards' addresses
//     failed    it cannot continue: why
//
// Epoch E + 1 is open before E is over. Messages of an epoch that is over are dropped.
// Pure. Texts arrive from the network: nothing in them is trusted, except that a zero follows them, which the
// rendezvous guarantees. Texts that are written are malloc'd.
#ifndef STARRING_PS_NET_MEETING_H
#define STARRING_PS_NET_MEETING_H

#include "ps/net/roster.h"
#include "shared/fabric/meet.h"

struct checkpoint;

// ---------------------------------------------------------------- names
#define MEETING_NOW    "star/now"
#define MEETING_READY  "ready"
#define MEETING_FAILED "failed"

const char *meeting_start_name(char out[MEET_NAME_MAX], uint32_t epoch, enum ps_role role);
const char *meeting_join_name(char out[MEET_NAME_MAX], uint32_t epoch, int worker, uint64_t life);
const char *meeting_over_name(char out[MEET_NAME_MAX], uint32_t epoch);

// ---------------------------------------------------------------- what the scheduler publishes
struct meeting_now {
    uint32_t epoch;                    // 1, 2, ..
    uint64_t job;                      // never 0; all messages of the epoch carry it
    uint64_t clock;                    // ps_clock_id of the scheduler
    char address[ROSTER_ADDRESS_MAX];  // the scheduler's address for rounds, as bound
};
char *meeting_now_text(const struct meeting_now *n, size_t *bytes);
// Returns false if the text is not valid; *out is undefined then, here and below.
bool meeting_now_read(const char *text, size_t bytes, struct meeting_now *out);

// The point that a job resumes from, as its scheduler finds it.
struct start_point {
    char checkpoint[WIRE_TEXT_MAX];  // absolute path; "": from step 0
    char seal[17];  // checkpoint_seal, which identifies the checkpoint among those of the same name
    int64_t step;   // steps done
};
// Whether this process finds the same checkpoint under that name as the scheduler. Returns 0, or -1 after logging.
int start_point_check(const struct start_point *p, const struct checkpoint *c);

struct meeting_start {
    struct start_point from;
    uint32_t life;          // the worker's process among those of its rank, 1, 2, ..; 0: never replaced
    struct roster *roster;  // owned by the reader: roster_destroy
};
// workers: the number of workers in the text: all; none in a text for workers if no worker joins or leaves.
char *meeting_start_text(const struct meeting_start *s, size_t *bytes);
bool meeting_start_read(const char *text, size_t bytes, int shards, int workers, struct meeting_start *out);

// ---------------------------------------------------------------- what a role sends
struct meeting_ready {
    uint32_t epoch;
    uint64_t manifest;      // its hash (ps/job/manifest.h)
    const char *identity;   // the manifest's; when read: NULL if it has none
    const char *endpoints;  // a server's: one line per shard (roster.h); else ""
};
char *meeting_ready_text(const struct meeting_ready *r, size_t *bytes);
// out->endpoints points into text, with a zero after it; out->identity is malloc'd, and the caller frees it.
bool meeting_ready_read(const char *text, size_t bytes, struct meeting_ready *out);

struct meeting_failed {
    uint32_t epoch;
    bool lost;  // a peer is missing: a new epoch may help
    char why[WIRE_TEXT_MAX];
};
char *meeting_failed_text(const struct meeting_failed *f, size_t *bytes);
bool meeting_failed_read(const char *text, size_t bytes, struct meeting_failed *out);

#endif
