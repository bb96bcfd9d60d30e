// The scheduler as a pure state machine: a policy over the members of the registry (shared/fabric/registry.h), which reports
// who has arrived, left or is lost. It decides when an epoch begins and for whom it waits, who is late, and when the
// job closes. Only `death` decides what a death does to the job: a new epoch, while restarts are left. The common work
// of the members is in rounds.h. No sockets, no clock but `now` (seconds), which stops while the thread is blocked, so
// that no member counts as silent then (shared/time/poll_clock.h). One thread.
//
// Errors: -1 with scheduler_core_error set; the reason is then published at the rendezvous.
#ifndef STARRING_PS_SCHEDULER_SCHEDULER_CORE_H
#define STARRING_PS_SCHEDULER_SCHEDULER_CORE_H

#include "ps/scheduler/membership.h"
#include "shared/launch/verdict.h"

struct scheduler_core;
struct scheduler_core *scheduler_core_create(const struct scheduler_options *o);
void scheduler_core_destroy(struct scheduler_core **c);

// Takes the registry's news of a member (shared/fabric/meet.h); n->member: numbered as in membership.h. The caller keeps n->data.
void scheduler_core_on_news(struct scheduler_core *c, const struct member_news *n, double now);
// Returns the member or shard that sent the message; -1: none of this epoch.
int scheduler_core_sender_of(const struct scheduler_core *c, const struct wire_header *h);
// Takes a message for rounds; a message from no member of this epoch is dropped.
void scheduler_core_message(struct scheduler_core *c, const struct wire_header *h, double now);
// Deadlines, the epoch's start, SHUTDOWN: checks all members. Call it after the messages that have arrived, and at
// least once per heartbeat. Returns 0 or -1.
int scheduler_core_tick(struct scheduler_core *c, double now);
// The launcher reports that a worker's or server's process has died. Returns what happens to the job, and whether the
// process is started again. Restarts are counted only here.
struct verdict scheduler_core_dead(struct scheduler_core *c, const struct death *d, double now);
// The current epoch; the port stamps its job number on messages.
const struct epochs *scheduler_core_epochs(const struct scheduler_core *c);
// Ends the job with this reason; every member learns it. Always returns -1.
int scheduler_core_abort(struct scheduler_core *c, const char *why);
// Whether a step waits for the end of its grace period: the caller should tick again soon.
bool scheduler_core_in_grace(const struct scheduler_core *c);
// Returns true, with the line in *text, if a member has become slow or is slow to arrive, and that was not printed yet.
bool scheduler_core_next_slow_line(struct scheduler_core *c, double now, char text[WIRE_TEXT_MAX]);
// Returns true, with the line in *text, if an event has not been printed yet.
bool scheduler_core_next_news_line(struct scheduler_core *c, char text[WIRE_TEXT_MAX]);
bool scheduler_core_done(const struct scheduler_core *c);
const char *scheduler_core_error(const struct scheduler_core *c);
// Counts workers and servers that are not present. Returns false if the job has started.
bool scheduler_core_waits(const struct scheduler_core *c, int *workers, int *servers);
// Steps known to be done; -1: none since the epoch began.
int64_t scheduler_core_steps(const struct scheduler_core *c);

#endif
