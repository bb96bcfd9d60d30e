#include "ps/worker/enter.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "ps/job/timing.h"
#include "ps/net/medium.h"
#include "shared/core/error.h"
#include "shared/time/poll_clock.h"

// Checks that the role was not interrupted and that its epoch continues. Returns 0, or -1 after logging.
static int check_epoch(const struct entry *e) {
    return member_interrupted(e->o.role) ? -1 : member_goes_on(e->o.role, &e->id);
}

// ---------------------------------------------------------------- the shards' memory
// The questions to a shard; the answer repeats the number in seq.
enum question { ASK_SHARE = 1, ASK_NOTHING, ASK_DONE };

static void ask(const struct entry *e, int shard, enum question question) {
    const struct ps_port port = star_link_port(e->link);
    struct wire_header h = {.kind = WIRE_ATTACH, .seq = (uint64_t)question};
    if (question == ASK_SHARE) segment_name(&e->o.sharing->own, h.text);
    port_tell(&port, shard, &h);
}

static int cannot_share(const struct entry *e, int shard, const char *why) {
    int threads = e->o.map->threads, server = shard / threads;
    if (e->o.role->config->medium == MEDIUM_SHM)
        return fail(
            "--medium shm: worker %d and server %d cannot share memory: %s. Start them on one host, in one "
            "container and as one user, or give --medium auto, which takes tcp between those that cannot",
            e->id.rank, server, why);
    if (ps_beside(e->o.role->config) && server == e->id.rank)
        return fail(
            "--servers-on workers: worker %d and server %d are one pair and cannot share memory: %s. Start server %d with "
            "--rank %d on the host of worker %d, as the same user, or use --servers-on hosts",
            server, server, why, server, server, server);
    if (e->o.role->log_waiting && shard % threads == 0)
        info("payloads from and to server %d go over tcp: %s", server, why);
    return 0;
}

static int on_attached(const struct entry *e, enum question *question, int shard,
                       const struct wire_header *h) {
    char why[SEGMENT_WHY_MAX];
    bool refused = (h->flags & WIRE_NOT_SHARED) != 0;
    if (h->kind != WIRE_ATTACHED || h->seq != (uint64_t)question[shard]) return 0;
    if (question[shard] == ASK_SHARE && (refused || sharing_attach(e->o.sharing, shard, h->text, why) != 0)) {
        if (cannot_share(e, shard, refused ? h->text : why) != 0) return -1;
        ask(e, shard, question[shard] = ASK_NOTHING);
        return 0;
    }
    question[shard] = ASK_DONE;
    return 0;
}

static int receive_attached(const struct entry *e, enum question *question, int shard) {
    struct net_message m;
    int rc;
    while ((rc = net_recv(shard < 0 ? e->lines.scheduler : e->lines.dealers[shard], &m)) == 1) {
        ps_frame_release(m.frame);
        if (shard < 0 || m.header.job != e->id.job) continue;
        if (!roster_is_shard(e->start.roster, shard, e->o.map->threads, &m.header)) continue;
        star_link_receive(e->link, shard, &m.header, now_seconds());
        if (on_attached(e, question, shard, &m.header) != 0) return -1;
    }
    return rc;
}

static int attach_all(const struct entry *e, enum question *question, struct net_poll_item *items) {
    const struct config *c = e->o.role->config;
    int shards = e->o.map->shards, threads = e->o.map->threads;
    double since_s = now_seconds();  // the time of the start, or of the last answer
    struct poll_clock clock = {.lost_s = ps_deadline_s(c)};
    link_tick(e->link, since_s);
    for (int g = 0; g < shards; g++)
        ask(e, g,
            question[g] = ps_shares_with(e->o.sharing->c, e->id.rank, g / threads) ? ASK_SHARE : ASK_NOTHING);
    for (int before = shards;;) {
        double now = poll_clock_poll(&clock, now_seconds());
        int open = 0, late = -1;
        for (int g = 0; g < shards; g++)
            if (question[g] != ASK_DONE) open++, late = late < 0 ? g : late;
        if (!open) return 0;
        if (open < before) since_s = now;
        before = open;
        if (now - since_s > ps_deadline_s(c))
            return fail("server %d shard %d did not answer within %lld ms (parameter_server.deadline_ms)",
                        late / threads, late % threads, (long long)c->ps.deadline_ms);
        if (check_epoch(e) != 0) return -1;
        link_tick(e->link, now_seconds());
        items[0] = (struct net_poll_item){.socket = e->lines.scheduler};
        for (int g = 0; g < shards; g++) items[1 + g] = (struct net_poll_item){.socket = e->lines.dealers[g]};
        if (net_poll(items, 1 + shards, POLL_MS) != 0) return -1;
        for (int i = 0; i <= shards; i++)
            if (items[i].ready && receive_attached(e, question, i - 1) != 0) return -1;
    }
}

static int attach_shards(const struct entry *e) {
    unsigned long shards = (unsigned long)e->o.map->shards;
    if (!ps_shares_any(e->o.sharing->c)) return 0;
    enum question *question = xcalloc(shards, sizeof *question);
    struct net_poll_item *items = xcalloc(shards + 1, sizeof *items);
    int rc = attach_all(e, question, items);
    free(items);
    free(question);
    return rc;
}

// ---------------------------------------------------------------- a job that is under way
// Returns 1 if the job has taken the worker in, 0 if not yet, -1 after logging if it never will.
static int receive_joined(struct entry *e) {
    struct net_message m;
    int rc;
    while ((rc = net_recv(e->lines.scheduler, &m)) == 1) {
        struct wire_header *h = &m.header;
        ps_frame_release(m.frame);
        if (h->job != e->id.job) continue;
        star_link_receive(e->link, PEER_SCHEDULER, h, now_seconds());
        if (h->kind == WIRE_REFUSED) return ps_fail(h->text);
        if (h->kind != WIRE_JOINED || opening_read(h, &e->joined.opening) != 0) continue;
        e->joined.gathers = h->seq;
        return 1;
    }
    return rc;
}

// Joins the running job. Takes at most as long as one step of the job.
static int join_job(struct entry *e) {
    const struct ps_port port = star_link_port(e->link);
    int rc = 0;
    link_tick(e->link, now_seconds());
    port_tell(&port, PEER_SCHEDULER, &(struct wire_header){.kind = WIRE_JOIN});
    while (rc == 0) {
        struct net_poll_item item = {.socket = e->lines.scheduler};
        if (check_epoch(e) != 0) return -1;
        link_tick(e->link, now_seconds());
        if (net_poll(&item, 1, POLL_MS) != 0) return -1;
        if (item.ready) rc = receive_joined(e);
    }
    return rc > 0 ? 0 : -1;
}

// ---------------------------------------------------------------- the whole
static int wait_for_start(struct entry *e) {
    struct waiting waiting = {.said_s = 0};
    int rc;
    while ((rc = member_starts(e->o.role, &e->id, e->o.map->shards, &e->start)) == 0) {
        if (check_epoch(e) != 0) return -1;
        member_log_waiting(e->o.role, &waiting, "the other workers and the servers of the job");
        usleep(POLL_MS * 1000);
    }
    return rc < 0 ? -1 : 0;
}

static int connect_to(struct entry *e, const char *scheduler) {
    const struct ps_role_options *role = e->o.role;
    const struct config *c = role->config;
    const struct shard_map *map = e->o.map;
    const struct net_peer to = {.address = scheduler};
    struct net_options no = {.wire = e->o.wire,
                             .fabric.max_payload_bytes = (size_t)c->ps.partition_bytes + (1 << 20),
                             .fabric.io_threads = ps_io_threads(e->o.sharing->c, map->shards, map->servers),
                             .fabric.queue_messages = 4 * map->count + 1024,
                             .faults = fault_plan_of(c, PS_WORKER, role->rank),
                             .fabric.key = role->key,
                             .beside = {PS_SHARD, role->rank, ps_beside(c) ? map->threads : 0}};
    e->net = net_create(&no);
    if (!e->net || !(e->lines.scheduler = net_dealer(e->net, &to))) return -1;
    e->link = star_link_create(&(struct star_link_options){.peers = map->shards,
                                                           .repeat_most_s = ps_repeat_most_s(c),
                                                           .network = {&e->lines, net_lines_send},
                                                           .renew = e->o.renew,
                                                           .ctx = e->o.ctx});
    return 0;
}

int enter(const struct enter_options *o, struct entry *e) {
    const struct ps_role_options *role = o->role;
    char scheduler[FABRIC_ADDRESS_MAX];
    e->o = *o;
    e->id = (struct ps_identity){.role = PS_WORKER, .rank = o->role->rank};
    e->lines.id = &e->id;
    e->lines.dealers = xcalloc((unsigned long)o->map->shards, sizeof *e->lines.dealers);
    if (descriptors_claim(descriptors_of_worker(role->config, e->o.map->shards), 0) != 0) return -1;
    if (member_find(role, &e->id, scheduler) != 0 || connect_to(e, scheduler) != 0) return -1;
    struct manifest manifest = manifest_make(role, e->o.map);
    member_ready(role, &e->id, &manifest, NULL);
    manifest_release(&manifest);
    int rc = wait_for_start(e);
    for (int g = 0; rc == 0 && g < e->o.map->shards; g++) {
        const struct roster_shard *s = &e->start.roster->shard[g];
        const struct net_peer to = {s->address, s->token};
        if (!(e->lines.dealers[g] = net_dealer(e->net, &to))) rc = -1;
    }
    if (rc == 0) rc = attach_shards(e);
    if (rc == 0 && e->id.joins) rc = join_job(e);
    return member_left(role, &e->id, rc);
}

void entry_free(struct entry *e) {
    link_destroy(&e->link);
    free(e->lines.dealers);
    roster_destroy(&e->start.roster);
}
