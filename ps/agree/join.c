#include "ps/agree/join.h"

#include "ps/job/timing.h"
#include "ps/job/turn_stall.h"
#include "ps/net/rejoin.h"
#include "shared/core/error.h"

// 1: taken in; 0: not yet; -1 after logging: never.
static int hear(const struct ps_login *l, const struct ps_identity *id, struct link *link, struct joined *out,
                double *heard_s) {
    struct net_message m;
    int rc;
    while ((rc = net_recv(l->socket, &m)) == 1) {
        struct wire_header *h = &m.header;
        ps_frame_release(m.frame);
        if (h->kind == WIRE_REFUSED || h->kind == WIRE_ABORT) return ps_told(h);
        if (rejoin_asked(id->job, h)) return rejoin_now(l->role, id->incarnation, h->text);  // another epoch
        if (h->job != id->job) continue;
        *heard_s = now_seconds();
        link_receive(link, PEER_SCHEDULER, h, *heard_s);
        if (h->kind != WIRE_JOINED || deal_read(h, &out->deal) != 0) continue;
        out->gathers = h->seq;
        return 1;
    }
    return rc;
}

int join_running(const struct ps_login *l, const struct ps_identity *id, struct link *link,
                 struct joined *out) {
    const struct config *c = l->role->config;
    double heard_s = now_seconds(), beat_s = 0;
    struct turn_stall still = {.turn_s = heard_s};
    const struct ps_port port = link_port(link);
    link_tick(link, heard_s);
    port_tell(&port, PEER_SCHEDULER, &(struct wire_header){.kind = WIRE_JOIN});
    for (;;) {
        double now = now_seconds();
        struct net_poll_item item = {.socket = l->socket};
        if (ps_stopped(l->role->stop)) {
            error_quiet(1);
            return fail("interrupted during login");
        }
        link_tick(link, now);
        if (now - beat_s > ps_heartbeat_s(c)) {
            beat_s = now;
            ps_say(l->socket, id, WIRE_HEARTBEAT, NULL);
        }
        if (net_poll(&item, 1, POLL_MS) != 0) return -1;
        int rc = item.ready ? hear(l, id, link, out, &heard_s) : 0;
        if (rc) return rc > 0 ? 0 : -1;
        char stood[TURN_STALL_WORDS];
        now = now_seconds();
        heard_s = turn_stall_moved(heard_s, turn_stall_excused(&still, ps_lost_s(c), now), now);
        if (now - heard_s > ps_lost_s(c))
            return fail("joining: the scheduler was lost: silent for %.1f s%s" PS_LOST_KEY, now - heard_s,
                        turn_stall_words(&still, ps_lost_s(c), heard_s, stood));
    }
}
