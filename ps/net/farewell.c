#include "ps/net/farewell.h"

#include "ps/timing.h"
#include "shared/core/error.h"

static bool is_answer(enum wire_kind said, const struct wire_header *h) {
    if (said == WIRE_GOODBYE) return h->kind == WIRE_GOODBYE_ACK;
    return h->kind == WIRE_ABORT || h->kind == WIRE_ROLLBACK;
}

// Whether it has been.
static bool say_until_heard(struct net_socket *scheduler, const struct ps_identity *id, enum wire_kind kind,
                            const char *text) {
    double begin = now_seconds(), said_s = 0;
    for (int repeats = -1; now_seconds() - begin < LAST_WORD_S;) {
        struct net_poll_item item = {.socket = scheduler};
        struct net_message m;
        if (repeats < 0 || now_seconds() - said_s > rto_backoff(RTO_LEAST_S, repeats, LAST_WORD_EVERY_S)) {
            ps_say(scheduler, id, kind, text);
            said_s = now_seconds();
            repeats++;
        }
        if (net_poll(&item, 1, POLL_MS) != 0) return false;
        while (item.ready && net_recv(scheduler, &m) == 1) {
            ps_frame_release(m.frame);
            if (is_answer(kind, &m.header)) return true;
        }
    }
    return false;
}

void ps_abort(struct net_socket *scheduler, const struct ps_identity *id, const char *text) {
    // Whose ABORT was not heard is missed, and named: a GOODBYE would hide that.
    if (say_until_heard(scheduler, id, WIRE_ABORT, text)) ps_say(scheduler, id, WIRE_GOODBYE, NULL);
}

void ps_part(struct net_socket *scheduler, const struct ps_identity *id) {
    say_until_heard(scheduler, id, WIRE_GOODBYE, NULL);
}
