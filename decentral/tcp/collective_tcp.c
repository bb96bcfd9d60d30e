// Messages between two ranks, from and to the buffers of a call. The exchanges of a call, and its sums in rank order,
// are in collective_peers.c; shared/fabric/mesh.h moves the bytes.
//
// Waiting     In slices of some milliseconds. Between two slices it checks whether a rank has aborted, whether a
//             missing rank is gone, and whether the deadline since the last moved bytes has passed (rank_liveness.h).
#include "decentral/tcp/collective_tcp.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "decentral/collective/collective_peers.h"
#include "shared/core/error.h"

#define SLICE_MS    10                 // a wait is cut into slices of this length
#define OWN_STAGING ((size_t)4 << 10)  // staging per peer, if none is given

struct tcp_world {
    int rank, size;
    struct mesh *mesh;
    struct rank_liveness *lives;
    atomic_bool broken;
};

struct collective_tcp {
    struct collective_peers peers;
    struct tcp_world *world;
    char *own_staging;  // NULL: staging was given
};

static struct collective_tcp *of(struct collective_peers *p) { return (struct collective_tcp *)p; }

// ---------------------------------------------------------------- the reason to end
static void receive_reason(void *ctx, int from, const void *bytes, size_t n) {
    char why[MESH_WORD_MAX + 1];
    (void)from;
    snprintf(why, sizeof why, "%.*s", (int)n, (const char *)bytes);
    rank_liveness_receive_reason(((struct tcp_world *)ctx)->lives, why);
}

static void send_reason(struct collective_peers *p, const char *why) {
    const struct tcp_world *w = of(p)->world;
    for (int i = 0; i < w->size; i++)
        if (i != w->rank) mesh_say(w->mesh, i, why, strnlen(why, MESH_WORD_MAX));
}

// ---------------------------------------------------------------- create and destroy
int tcp_world_open(struct tcp_world **out, const struct tcp_world_options *o) {
    *out = NULL;
    if (o->size > REDUCE_MAX) return fail("%d ranks over tcp; at most %d are possible", o->size, REDUCE_MAX);
    struct tcp_world *w = xcalloc(1, sizeof *w);
    w->rank = o->rank;
    w->size = o->size;
    w->lives = o->lives;
    int rc = mesh_open(&w->mesh, &(struct mesh_options){.rank = o->rank,
                                                        .size = o->size,
                                                        .lanes = COLLECTIVE_CHANNELS,
                                                        .listen = o->listen,
                                                        .key = o->key,
                                                        .deadline_s = o->deadline_s,
                                                        .meet = o->meet,
                                                        .meet_ctx = o->ctx,
                                                        .word = receive_reason,
                                                        .ctx = w});
    if (rc) tcp_world_close(&w);
    *out = w;
    return w ? 0 : -1;
}

void tcp_world_close(struct tcp_world **world) {
    struct tcp_world *w = *world;
    if (!w) return;
    if (w->mesh && !atomic_load(&w->broken)) mesh_leave(w->mesh);
    mesh_close(&w->mesh);
    free(w);
    *world = NULL;
}

// ---------------------------------------------------------------- exchanges
static int begin_exchange(struct collective_peers *p, enum collective_primitive primitive) {
    struct mesh *mesh = of(p)->world->mesh;
    // A recv receives the message of a send: both have the same tag.
    uint32_t tag = primitive == COLLECTIVE_RECV ? COLLECTIVE_SEND : (uint32_t)primitive;
    for (int i = 0; i < p->impl.head.size; i++) {
        const struct collective_transfer *t = &p->transfers[i];
        mesh_receive(mesh, p->impl.channel, i, tag, t->recv, t->recv_bytes);
        mesh_send(mesh, p->impl.channel, i, tag, t->send, t->send_bytes);
    }
    mesh_turn(mesh);
    return 0;
}

// missing: (size) flags, set by check_peers.
static bool is_missing(const void *missing, int rank) { return ((const bool *)missing)[rank]; }

static int check_peers(struct collective_tcp *m, struct liveness_wait *w) {
    bool missing[REDUCE_MAX] = {false};
    char why[LANES_WHY], text[LANES_WHY + 64];
    w->ctx = missing;
    mesh_missing(m->world->mesh, m->peers.impl.channel, missing);
    int gone = rank_liveness_end_reason(m->world->lives) ? -1 : mesh_gone(m->world->mesh, missing, why);
    if (gone < 0) return peers_check(&m->peers, w);
    snprintf(text, sizeof text, "rank %d is gone: %s", gone, why);
    return peers_lose(&m->peers, w->what, text);
}

static int end_exchange(struct collective_peers *p, enum collective_primitive primitive) {
    struct collective_tcp *m = of(p);
    struct mesh *mesh = m->world->mesh;
    const char *what = collective_name(primitive);
    struct liveness_wait w = {
        .what = what, .since_s = now_seconds(), .deadline_s = p->impl.head.deadline_s, .missing = is_missing};
    uint64_t moved = mesh_moved(mesh, p->impl.channel), now;
    char why[LANES_WHY];
    int rc = 0, done;
    peers_wait_begins(p);
    while (!rc && (done = mesh_wait(mesh, p->impl.channel, SLICE_MS, why)) <= 0) {
        if ((now = mesh_moved(mesh, p->impl.channel)) != moved) w.since_s = now_seconds();
        moved = now;
        rc = done < 0 ? peers_fail(p, what, why) : check_peers(m, &w);
    }
    peers_wait_ends(p);
    if (rc)
        mesh_drop(mesh, p->impl.channel);
    else
        peers_count(p, primitive, 0, SIZE_MAX);
    return rc;
}

static void push(struct collective_peers *p) { mesh_turn(of(p)->world->mesh); }

static const struct peers_engine exchange = {
    .begin = begin_exchange, .end = end_exchange, .push = push, .send_reason = send_reason};

// ---------------------------------------------------------------- the table
static void tcp_destroy(struct collective *c) {
    struct collective_tcp *m = (struct collective_tcp *)c;
    mesh_drop(m->world->mesh, m->peers.impl.channel);
    free(m->own_staging);
    peers_fini(&m->peers);
    free(m);
}

static void look(struct collective *c) { mesh_look(((struct collective_tcp *)c)->world->mesh); }

static const struct collective_ops tcp_ops = {
    .name = "tcp",
    .enqueue = collective_impl_enqueue,
    .abort = peers_abort,
    .look = look,
    .destroy = tcp_destroy,
};

static struct collective *create(void *world, int rank, int channel, const struct collective_options *o) {
    struct tcp_world *w = world;
    struct collective_options own = *o;
    (void)rank;
    if (o->mode == REDUCE_NATIVE && w->size > 1)
        return fail(
                   "\"reduce\": \"native\": over tcp ranks sum themselves, in rank order; leave \"reduce\" out"),
               NULL;
    struct collective_tcp *m = xcalloc(1, sizeof *m);
    if (!o->staging && !o->host_staging && w->size > 1) {
        own.staging_bytes = (size_t)(w->size - 1) * OWN_STAGING;
        own.staging = m->own_staging = xcalloc(1, own.staging_bytes);
    }
    m->peers.impl.channel = channel;
    m->peers.impl.lives = w->lives;
    m->peers.engine = &exchange;
    m->peers.broken = &w->broken;
    m->world = w;
    if (!peers_init(&m->peers, &tcp_ops, w->rank, w->size, &own)) return &m->peers.impl.head;
    free(m->own_staging);
    free(m);
    return NULL;
}

const struct collective_kind collective_tcp_kind = {
    .name = "tcp", .create = create, .staging_bytes = peers_staging_bytes, .on_host = true};
