#include "ps/worker/attach.h"

#include <stdio.h>
#include <stdlib.h>

#include "ps/job/timing.h"
#include "ps/job/turn_stall.h"
#include "ps/net/medium.h"
#include "ps/net/rejoin.h"
#include "shared/core/error.h"

// The questions to a shard: seq says which answer is which.
enum asked { ASK_SHARE = 1, ASK_NOTHING, ASK_DONE };

struct meeting {
    const struct attach *a;
    enum asked *asked;  // (shards)
    int open;
};

static void ask(const struct meeting *m, int shard) {
    const struct ps_port port = link_port(m->a->link);
    struct wire_header h = {.kind = WIRE_ATTACH, .seq = (uint64_t)m->asked[shard]};
    if (m->asked[shard] == ASK_SHARE) segment_name(&m->a->sharing->own, h.text);
    port_tell(&port, shard, &h);
}

static int cannot_share(const struct meeting *m, int shard, const char *why) {
    const struct ps_role_options *role = m->a->role;
    int server = shard / m->a->sharing->map->threads;
    if (role->config->medium == MEDIUM_SHM)
        return fail(
            "--medium shm: worker %d and server %d cannot share memory: %s. Start them on one host, in one "
            "container and as one user, or give --medium auto, which takes tcp between those that cannot",
            m->a->id->rank, server, why);
    if (role->say_waiting && shard % m->a->sharing->map->threads == 0)
        info("payloads from and to server %d go over tcp: %s", server, why);
    return 0;
}

static int answered(struct meeting *m, int shard, const struct wire_header *h) {
    char why[SEGMENT_WHY_MAX];
    bool refused = (h->flags & WIRE_HELD) != 0;
    if (h->kind != WIRE_ATTACHED || h->seq != (uint64_t)m->asked[shard]) return 0;
    if (m->asked[shard] == ASK_SHARE && (refused || sharing_meet(m->a->sharing, shard, h->text, why) != 0)) {
        if (cannot_share(m, shard, refused ? h->text : why) != 0) return -1;
        m->asked[shard] = ASK_NOTHING;
        ask(m, shard);
        return 0;
    }
    m->asked[shard] = ASK_DONE;
    m->open--;
    return 0;
}

static int hear(struct meeting *m, struct net_socket *from, int shard) {
    struct net_message x;
    int rc;
    while ((rc = net_recv(from, &x)) == 1) {
        ps_frame_release(x.frame);
        if (shard < 0 && (x.header.kind == WIRE_ABORT || x.header.kind == WIRE_REFUSED))
            return ps_told(&x.header);
        if (shard < 0 && rejoin_asked(m->a->id->job, &x.header))
            return rejoin_now(m->a->role, m->a->id->incarnation, x.header.text);
        if (shard < 0 || x.header.job != m->a->id->job) continue;
        if (!roster_is_shard(m->a->roster, shard, m->a->sharing->map->threads, &x.header)) continue;
        link_receive(m->a->link, shard, &x.header, now_seconds());
        if (answered(m, shard, &x.header) != 0) return -1;
    }
    return rc;
}

static int meet_all(struct meeting *m, struct net_poll_item *items) {
    const struct config *c = m->a->role->config;
    int shards = m->a->sharing->map->shards;
    double since_s = now_seconds();  // the start, or the last answer
    struct turn_stall still = {.turn_s = since_s};
    for (int open = m->open; m->open > 0;) {
        double now = now_seconds();
        since_s = turn_stall_moved(since_s, turn_stall_excused(&still, ps_deadline_s(c), now), now);
        if (open > m->open) since_s = now;
        open = m->open;
        if (ps_stopped(m->a->role->stop)) {
            error_quiet(1);
            return fail("interrupted during login");
        }
        link_tick(m->a->link, now);
        items[0] = (struct net_poll_item){.socket = m->a->scheduler};
        for (int g = 0; g < shards; g++) items[1 + g] = (struct net_poll_item){.socket = m->a->shards[g]};
        if (net_poll(items, 1 + shards, POLL_MS) != 0) return -1;
        for (int i = 0; i <= shards; i++)
            if (items[i].ready && hear(m, items[i].socket, i - 1) != 0) return -1;
        for (int g = 0; now - since_s > ps_deadline_s(c) && g < shards; g++)
            if (m->asked[g] != ASK_DONE)
                return fail(
                    "login: server %d shard %d did not answer within %lld ms (parameter_server.deadline_ms)",
                    g / m->a->sharing->map->threads, g % m->a->sharing->map->threads,
                    (long long)c->ps.deadline_ms);
    }
    return 0;
}

int attach_shards(const struct attach *a) {
    int shards = a->sharing->map->shards;
    if (!ps_shares(a->sharing->c)) return 0;
    struct meeting m = {.a = a, .asked = xcalloc((unsigned long)shards, sizeof *m.asked), .open = shards};
    struct net_poll_item *items = xcalloc((unsigned long)shards + 1, sizeof *items);
    link_tick(a->link, now_seconds());
    for (int g = 0; g < shards; g++) {
        m.asked[g] = ASK_SHARE;
        ask(&m, g);
    }
    int rc = meet_all(&m, items);
    free(items);
    free(m.asked);
    return rc;
}
