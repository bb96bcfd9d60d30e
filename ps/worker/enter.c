#include "ps/worker/enter.h"

#include <stdio.h>
#include <stdlib.h>

#include "ps/job/timing.h"
#include "ps/net/medium.h"
#include "shared/core/error.h"
#include "shared/time/turn_clock.h"

// 0, or -1 after logging.
static int goes_on(const struct entering *e) {
    return member_interrupted(e->role) ? -1 : member_goes_on(e->role, e->id);
}

// ---------------------------------------------------------------- the shards' memory
// The questions to a shard: seq says which answer is which.
enum asked { ASK_SHARE = 1, ASK_NOTHING, ASK_DONE };

static void ask(const struct entering *e, int shard, enum asked question) {
    const struct ps_port port = link_port(e->link);
    struct wire_header h = {.kind = WIRE_ATTACH, .seq = (uint64_t)question};
    if (question == ASK_SHARE) segment_name(&e->sharing->own, h.text);
    port_tell(&port, shard, &h);
}

static int cannot_share(const struct entering *e, int shard, const char *why) {
    int threads = e->sharing->map->threads, server = shard / threads;
    if (e->role->config->medium == MEDIUM_SHM)
        return fail(
            "--medium shm: worker %d and server %d cannot share memory: %s. Start them on one host, in one "
            "container and as one user, or give --medium auto, which takes tcp between those that cannot",
            e->id->rank, server, why);
    if (ps_beside(e->role->config) && server == e->id->rank)
        return fail(
            "--servers-on workers: worker %d and server %d are one pair and cannot share memory: %s. Start server %d with "
            "--rank %d on the host of worker %d, as the same user, or use --servers-on hosts",
            server, server, why, server, server, server);
    if (e->role->say_waiting && shard % threads == 0)
        info("payloads from and to server %d go over tcp: %s", server, why);
    return 0;
}

static int on_attached(const struct entering *e, enum asked *asked, int shard, const struct wire_header *h) {
    char why[SEGMENT_WHY_MAX];
    bool refused = (h->flags & WIRE_HELD) != 0;
    if (h->kind != WIRE_ATTACHED || h->seq != (uint64_t)asked[shard]) return 0;
    if (asked[shard] == ASK_SHARE && (refused || sharing_meet(e->sharing, shard, h->text, why) != 0)) {
        if (cannot_share(e, shard, refused ? h->text : why) != 0) return -1;
        ask(e, shard, asked[shard] = ASK_NOTHING);
        return 0;
    }
    asked[shard] = ASK_DONE;
    return 0;
}

static int hear(const struct entering *e, enum asked *asked, int shard) {
    struct net_message m;
    int rc;
    while ((rc = net_recv(shard < 0 ? e->lines->scheduler : e->lines->dealers[shard], &m)) == 1) {
        ps_frame_release(m.frame);
        if (shard < 0 || m.header.job != e->id->job) continue;
        if (!roster_is_shard(e->roster, shard, e->sharing->map->threads, &m.header)) continue;
        link_receive(e->link, shard, &m.header, now_seconds());
        if (on_attached(e, asked, shard, &m.header) != 0) return -1;
    }
    return rc;
}

static int meet(const struct entering *e, enum asked *asked, struct net_poll_item *items) {
    const struct config *c = e->role->config;
    int shards = e->sharing->map->shards, threads = e->sharing->map->threads;
    double since_s = now_seconds();  // the start, or the last answer
    struct turn_clock clock = {.lost_s = ps_deadline_s(c)};
    link_tick(e->link, since_s);
    for (int g = 0; g < shards; g++)
        ask(e, g,
            asked[g] = ps_shares_with(e->sharing->c, e->id->rank, g / threads) ? ASK_SHARE : ASK_NOTHING);
    for (int before = shards;;) {
        double now = turn_clock_turn(&clock, now_seconds());
        int open = 0, late = -1;
        for (int g = 0; g < shards; g++)
            if (asked[g] != ASK_DONE) open++, late = late < 0 ? g : late;
        if (!open) return 0;
        if (open < before) since_s = now;
        before = open;
        if (now - since_s > ps_deadline_s(c))
            return fail("server %d shard %d did not answer within %lld ms (parameter_server.deadline_ms)",
                        late / threads, late % threads, (long long)c->ps.deadline_ms);
        if (goes_on(e) != 0) return -1;
        link_tick(e->link, now_seconds());
        items[0] = (struct net_poll_item){.socket = e->lines->scheduler};
        for (int g = 0; g < shards; g++)
            items[1 + g] = (struct net_poll_item){.socket = e->lines->dealers[g]};
        if (net_poll(items, 1 + shards, POLL_MS) != 0) return -1;
        for (int i = 0; i <= shards; i++)
            if (items[i].ready && hear(e, asked, i - 1) != 0) return -1;
    }
}

int enter_meet_shards(const struct entering *e) {
    unsigned long shards = (unsigned long)e->sharing->map->shards;
    if (!ps_shares_any(e->sharing->c)) return 0;
    enum asked *asked = xcalloc(shards, sizeof *asked);
    struct net_poll_item *items = xcalloc(shards + 1, sizeof *items);
    int rc = meet(e, asked, items);
    free(items);
    free(asked);
    return rc;
}

// ---------------------------------------------------------------- a job that is under way
// 1: taken in; 0: not yet; -1 after logging: never.
static int hear_joined(const struct entering *e, struct joined *out) {
    struct net_message m;
    int rc;
    while ((rc = net_recv(e->lines->scheduler, &m)) == 1) {
        struct wire_header *h = &m.header;
        ps_frame_release(m.frame);
        if (h->job != e->id->job) continue;
        link_receive(e->link, PEER_SCHEDULER, h, now_seconds());
        if (h->kind == WIRE_REFUSED) return ps_fail(h->text);
        if (h->kind != WIRE_JOINED || opening_read(h, &out->opening) != 0) continue;
        out->gathers = h->seq;
        return 1;
    }
    return rc;
}

int enter_running_job(const struct entering *e, struct joined *out) {
    const struct ps_port port = link_port(e->link);
    int rc = 0;
    link_tick(e->link, now_seconds());
    port_tell(&port, PEER_SCHEDULER, &(struct wire_header){.kind = WIRE_JOIN});
    while (rc == 0) {
        struct net_poll_item item = {.socket = e->lines->scheduler};
        if (goes_on(e) != 0) return -1;
        link_tick(e->link, now_seconds());
        if (net_poll(&item, 1, POLL_MS) != 0) return -1;
        if (item.ready) rc = hear_joined(e, out);
    }
    return rc > 0 ? 0 : -1;
}
