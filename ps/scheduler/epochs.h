// The lives of a job. An epoch begins when everybody logs in and ends with a death; the next one has another job
// number, so that what was sent in an earlier one is known by its number and counts nowhere.
//
//     epoch 1, job a   HELLO.. START | steps | a worker dies
//                                              ROLLBACK to the others, and to whoever still speaks as of job a
//     epoch 2, job b   HELLO.. START (names the checkpoint) | steps ..
//
// Pure: no sockets, no clock. Without restarts there is one epoch, and a death is the job's end.
#ifndef STARRING_PS_SCHEDULER_EPOCHS_H
#define STARRING_PS_SCHEDULER_EPOCHS_H

#include "ps/net/wire.h"

// Calls of a new epoch to the scheduler's process. Members may be NULL where restarts is 0.
struct epoch_options {
    int restarts;  // so many deaths may be followed by an epoch, or a process in the dead one's place; 0: none
    int used;      // of them, by earlier lives of the scheduler
    uint32_t first;   // number of the first one; 0 counts as 1
    int start;        // of the run's command (DIR/history.jsonl)
    const char *why;  // of the first one, if it follows a death; else NULL
    void *ctx;
    uint64_t (*job)(void *ctx);  // another number, not 0
    // A member was lost by silence, or did not come: it may only be frozen, and must not go on beside the one that
    // replaces it. pid: 0 where it is not known.
    void (*lost)(void *ctx, int pid, const char *name);
    bool replaced;  // a lost member: by a launcher. Else by people, until the login's deadline
};

#define EPOCHS_FORMER 256

struct epochs {
    struct epoch_options o;
    uint32_t epoch;
    uint64_t job;
    int used;
    int64_t reached;          // steps that the last epoch that began had decided; -1: not known
    char why[WIRE_TEXT_MAX];  // this epoch has begun; "": it is the first
    uint64_t *retired;        // incarnations of processes of earlier epochs
    int count, capacity;
    // Incarnations that processes had before they began anew, as they say: of the last so many such HELLOs, for anyone may say that
    // as often as he likes. Only HELLOs that are still under way matter.
    uint64_t former[EPOCHS_FORMER];
    uint64_t formers;
};

void epochs_init(struct epochs *e, const struct epoch_options *o, uint64_t job);
void epochs_free(struct epochs *e);
// Whether a message was sent in an earlier epoch, or by a process that has been told to begin anew.
bool epochs_old(const struct epochs *e, const struct wire_header *h);
// A process of the epoch that ends: its logins count no more.
void epochs_retire(struct epochs *e, uint64_t incarnation);
// The incarnation that a process had before this one, as it says: the same, for HELLOs of it that come late.
void epochs_former(struct epochs *e, uint64_t incarnation);
bool epochs_retired(const struct epochs *e, uint64_t incarnation);
bool epochs_take(struct epochs *e);  // a restart; false: none is left
// The next one begins, because of why.
void epochs_next(struct epochs *e, const char *why);
// The answer to those of an earlier epoch.
struct wire_header epochs_rollback(const struct epochs *e);

#endif
