// The last word of a role: it waits until the scheduler has heard it, for a moment.
//
//     ABORT      or until ROLLBACK: the job has gone on
//     GOODBYE    of a server
//
// The scheduler's own last words (scheduler_core_part) are said until all have said GOODBYE.
#ifndef STARRING_PS_NET_FAREWELL_H
#define STARRING_PS_NET_FAREWELL_H

#include "ps/net/link.h"
#include "ps/net/login.h"

#define LAST_WORD_S       1.0  // a scheduler that does not answer for so long has ended
#define LAST_WORD_EVERY_S 0.06

// The thread that owns the socket and the link; blocks for LAST_WORD_S at most. Whatever else arrives is dropped. text: NULL:
// none.
void ps_abort(struct net_socket *scheduler, struct link *l, const struct ps_identity *id, const char *text);
void ps_part(struct net_socket *scheduler, struct link *l);

#endif
