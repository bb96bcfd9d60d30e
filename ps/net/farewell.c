#include "ps/net/farewell.h"

#include <stdio.h>

#include "ps/timing.h"
#include "shared/core/error.h"

// Whether it has been heard.
static bool say_until_heard(struct net_socket *scheduler, struct link *l, enum wire_kind kind,
                            const char *text) {
    const struct ps_port port = link_port(l);
    struct wire_header word = {.kind = kind};
    double begin = now_seconds();
    if (text) snprintf(word.text, sizeof word.text, "%s", text);
    link_hurry(l, LAST_WORD_EVERY_S);
    link_tick(l, begin);
    port_tell(&port, PEER_SCHEDULER, &word);
    while (now_seconds() - begin < LAST_WORD_S) {
        struct net_poll_item item = {.socket = scheduler};
        struct net_message m;
        if (net_poll(&item, 1, POLL_MS) != 0) return false;
        while (item.ready && net_recv(scheduler, &m) == 1) {
            ps_frame_release(m.frame);
            if (m.header.kind == WIRE_ROLLBACK) return true;
            link_receive(l, PEER_SCHEDULER, &m.header, now_seconds());
        }
        if (link_heard(l, PEER_SCHEDULER)) return true;
        link_tick(l, now_seconds());
    }
    return false;
}

void ps_abort(struct net_socket *scheduler, struct link *l, const struct ps_identity *id, const char *text) {
    // A GOODBYE would hide an ABORT that was not heard: the role is missed then, and named.
    if (say_until_heard(scheduler, l, WIRE_ABORT, text)) ps_say(scheduler, id, WIRE_GOODBYE, NULL);
}

void ps_part(struct net_socket *scheduler, struct link *l) {
    say_until_heard(scheduler, l, WIRE_GOODBYE, NULL);
}
