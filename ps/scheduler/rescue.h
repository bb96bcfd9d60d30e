// No step is lost although somebody has died: where servers replicate (ps/server/replica.h), the survivors' state and the
// replica of a dead server become a checkpoint behind the step that was decided last, and the next epoch begins there.
//
//     a death          from now on nothing is decided; HELLOs wait
//     RESCUE T    -->  surviving servers: each brings its keys to step T and writes its part of checkpoint step-T; the
//                      neighbour of a dead one writes that one's part as well, from the replica
//     (the files)      the scheduler's process waits for all parts, and completes the checkpoint
//     ROLLBACK    -->  all: the next epoch; it begins at the newest complete checkpoint, which is this one
//
// Where there is nothing to rescue (no step has been decided in this epoch) the ordinary way is taken: the next epoch begins
// where this one began. It is taken too, and the reason said, where two neighbours have died and where the parts cannot be
// completed.
//
// Pure: no sockets, no files, no clock but `now` (seconds). Part of the scheduler's core. Without replication it is idle.
#ifndef STARRING_PS_SCHEDULER_RESCUE_H
#define STARRING_PS_SCHEDULER_RESCUE_H

#include "ps/scheduler/membership.h"

struct rescue {
    const struct config *config;
    struct rescue_port port;
    int servers;
    bool *dead;                // (servers)
    bool known;                // now holds
    struct train_state now;    // behind the step that was decided last
    struct step_figures last;  // of that step
    bool active, given_up;
    struct wire_header message;  // RESCUE
    double since_s;              // when it was looked at first; 0: it has not been
    bool asked;                  // the servers, for what they have
    bool told;                   // that it takes long
    double failed_s;             // when the files said that it comes to nothing; 0: not so
    char why[WIRE_TEXT_MAX];     // the death, and what became of the rescue
};

void rescue_init(struct rescue *r, const struct scheduler_options *o);
void rescue_free(struct rescue *r);
// An epoch has started there.
void rescue_starts(struct rescue *r, const struct start_point *start);
// A step has been decided.
void rescue_follows(struct rescue *r, const struct wire_header *decision, const struct step_figures *figures);
// A member has died (-1: one that nobody knows). last: the last DECISION of this epoch. True: a rescue has begun or goes on,
// and the epoch ends with rescue_over; life: its number, if it begins. False: the ordinary way.
bool rescue_dies(struct rescue *r, const struct membership *m, int member, const char *why,
                 const struct wire_header *last, uint64_t life);
// A server's answer: it cannot leave its part. name: whose answer that is.
void rescue_answered(struct rescue *r, const char *name, const struct wire_header *h);
// True: it is over, well or not; the epoch is to end because of r->why.
bool rescue_over(struct rescue *r, double now);
// Whether it has taken long and people are to hear of it, in text; once.
bool rescue_slow(struct rescue *r, double now, char text[WIRE_TEXT_MAX]);

#endif
