// What a star's scheduler and roles tell each other where the processes of their job meet (shared/fabric/peer.h): the names, the
// values and the words. The scheduler puts and hears, in the process of member 0; a role looks and says.
//
//     star/now             of the epoch that is open: its number, its job, where the scheduler listens for rounds, its clock
//     star/start/E/ROLE    all are there: where epoch E goes on, and who is who. For workers, and for servers
//     star/join/E/W/LIFE   the same for that process of worker W, which joins the running job (--elastic)
//     star/over/E          epoch E has ended: why, in words. A role of it begins anew
//
//     ready     a role has read what it needs for the epoch: of which run it is; a server: where its shards listen
//     failed    it cannot go on: why
//
// Epoch E + 1 is open before E is over. What is said in an epoch that is over is dropped.
// Pure. Texts come from the network: nothing in them is trusted, but that a zero is behind them, as the meeting has it.
// Texts that are written are malloc'd.
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

// ---------------------------------------------------------------- what the scheduler puts
struct meeting_now {
    uint32_t epoch;                    // 1, 2, ..
    uint64_t job;                      // never 0; what all messages of the epoch carry
    uint64_t clock;                    // ps_clock_id of the scheduler
    char address[ROSTER_ADDRESS_MAX];  // where it listens for rounds, as bound
};
char *meeting_now_text(const struct meeting_now *n, size_t *bytes);
// False: it is none; out is undefined then, here and below.
bool meeting_now_read(const char *text, size_t bytes, struct meeting_now *out);

// Where a job begins, as its scheduler finds it.
struct start_point {
    char checkpoint[WIRE_TEXT_MAX];  // absolute path; "": the beginning
    char seal[17];                   // checkpoint_seal: another checkpoint of that name has another
    int64_t step;                    // steps done
};
// Whether what this process finds under the name is what the scheduler has found: 0, or -1 after logging.
int start_point_check(const struct start_point *p, const struct checkpoint *c);

struct meeting_start {
    struct start_point from;
    uint32_t life;  // which process of its rank a worker is, 1, 2, ..; 0: nobody takes another's place
    struct roster *roster;  // of the reader: roster_destroy
};
// workers: so many are named: all, but in a text for workers where none comes or goes none.
char *meeting_start_text(const struct meeting_start *s, size_t *bytes);
bool meeting_start_read(const char *text, size_t bytes, int shards, int workers, struct meeting_start *out);

// ---------------------------------------------------------------- what a role says
struct meeting_ready {
    uint32_t epoch;
    uint64_t manifest;      // its hash (ps/job/manifest.h)
    const char *identity;   // the manifest's; of the reader: NULL: it says none
    const char *endpoints;  // a server's: a line for each shard (roster.h); else ""
};
char *meeting_ready_text(const struct meeting_ready *r, size_t *bytes);
// out->endpoints lies in text, with a zero behind it; out->identity is malloc'd, the caller's.
bool meeting_ready_read(const char *text, size_t bytes, struct meeting_ready *out);

struct meeting_failed {
    uint32_t epoch;
    bool lost;  // what it lacks is a peer: a new epoch may help
    char why[WIRE_TEXT_MAX];
};
char *meeting_failed_text(const struct meeting_failed *f, size_t *bytes);
bool meeting_failed_read(const char *text, size_t bytes, struct meeting_failed *out);

#endif
