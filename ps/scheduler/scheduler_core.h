// The scheduler as a pure state machine: a policy over the members of the book (shared/fabric/book.h), which says who has come, has left
// and is lost. It decides when an epoch begins and for whom that waits, who is late, what a death makes of the job (`death`: the one
// place where that is decided: a new epoch, as often as restarts are left), and when the job closes. What members do together is
// rounds.h's. No sockets, no clock but `now` (seconds), which stands while the thread does: nobody is silent then
// (shared/time/turn_clock.h). One thread.
//
// Errors: -1 with scheduler_core_error set; the meeting has then been told.
#ifndef STARRING_PS_SCHEDULER_SCHEDULER_CORE_H
#define STARRING_PS_SCHEDULER_SCHEDULER_CORE_H

#include "ps/scheduler/membership.h"
#include "shared/launch/verdict.h"

struct scheduler_core;
struct scheduler_core *scheduler_core_create(const struct scheduler_options *o);
void scheduler_core_destroy(struct scheduler_core **c);

// What the book says of a member (shared/fabric/meet.h); n->member: as membership.h counts. n->data stays the caller's.
void scheduler_core_hears(struct scheduler_core *c, const struct member_news *n, double now);
// The member or shard that the message is of; -1: nobody of this epoch.
int scheduler_core_knows(const struct scheduler_core *c, const struct wire_header *h);
// A message for rounds: of nobody of this epoch it counts nowhere.
void scheduler_core_message(struct scheduler_core *c, const struct wire_header *h, double now);
// Deadlines, the epoch's start, SHUTDOWN: looks at all members. Call behind what has come, and at least every heartbeat. 0
// or -1.
int scheduler_core_tick(struct scheduler_core *c, double now);
// The process of a worker or server has died, as its launcher says: what becomes of the job, and whether the process is started
// again. Restarts are counted here alone.
struct verdict scheduler_core_dead(struct scheduler_core *c, const struct death *d, double now);
// Which life of the job goes on; its number is what the port stamps.
const struct epochs *scheduler_core_epochs(const struct scheduler_core *c);
// Ends the job with this reason; every member is told. Always -1.
int scheduler_core_abort(struct scheduler_core *c, const char *why);
// A step waits for the end of its grace: tick again soon.
bool scheduler_core_hurry(const struct scheduler_core *c);
// Whether a member has become slow, or is slow to come, and people are to hear of it, in text.
bool scheduler_core_slow(struct scheduler_core *c, double now, char text[WIRE_TEXT_MAX]);
// Whether something has happened that people are to hear of, in text; once.
bool scheduler_core_news(struct scheduler_core *c, char text[WIRE_TEXT_MAX]);
bool scheduler_core_done(const struct scheduler_core *c);
const char *scheduler_core_error(const struct scheduler_core *c);
// Workers and servers that have not come; false: the job has started.
bool scheduler_core_waits(const struct scheduler_core *c, int *workers, int *servers);
// How many steps are known to be done (-1: none has been since the epoch began).
int64_t scheduler_core_steps(const struct scheduler_core *c);

#endif
