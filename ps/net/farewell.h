// The last word of a role, which is lost if it is said once: it is repeated until it has been heard, for a moment.
//
//     ABORT      until the scheduler's ABORT (or ROLLBACK: the job has gone on)
//     GOODBYE    of a server, until GOODBYE_ACK
//
// The scheduler's own last words (scheduler_core_part) are repeated until all have said GOODBYE.
#ifndef STARRING_PS_NET_FAREWELL_H
#define STARRING_PS_NET_FAREWELL_H

#include "ps/net/login.h"

#define LAST_WORD_S       1.0  // a scheduler that does not answer for so long has ended
#define LAST_WORD_EVERY_S 0.06

// The thread that owns the socket; blocks for LAST_WORD_S at most. Whatever else arrives is dropped. text: NULL: none.
void ps_abort(struct net_socket *scheduler, const struct ps_identity *id, const char *text);
void ps_part(struct net_socket *scheduler, const struct ps_identity *id);

#endif
