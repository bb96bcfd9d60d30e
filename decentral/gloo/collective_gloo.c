// Collectives between processes over Gloo: messages between two ranks, out of and into the buffers of a call. What a call is made
// of, and its sums in rank order, stand in collective_peers.c; Gloo's own collectives are not used: they sum in another order,
// and end at their timeout, whether a rank is dead or slow.
//
// Channels    A mesh of connections each, so that what is small does not queue behind what is large. Their addresses go over the
//             world's words, like a call.
// Waiting     Message by message, for some milliseconds each, and between two of them a look around: has somebody aborted, is a
//             rank that is missing gone, has the deadline come (rank_pulse.h).
// Mismatch    Gloo ends a process that receives more than it asked for. Here a message of another length or primitive has
//             another slot, so that it is never received: calls that differ end at the deadline, and name the rank.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "decentral/gloo/gloo_impl.h"
#include "shared/core/error.h"
#include "shared/launch/stop.h"

#define SLICE_MS    10                 // of a wait for one message
#define OWN_STAGING ((size_t)4 << 10)  // a peer, where none is given

static struct collective_gloo *of(struct collective_peers *p) { return (struct collective_gloo *)p; }

// ---------------------------------------------------------------- messages
static uint64_t slot_of(int what, size_t bytes) { return (uint64_t)what << 48 | bytes; }

static void drop_messages(struct collective_gloo *m) {
    for (int i = 0; i < 2 * m->peers.impl.head.size; i++)
        if (m->messages[i]) gloo_message_free(&m->messages[i]);
}

// what: the slot's. A peer that is gone is found where it is waited for.
static void post(struct collective_gloo *m, int what) {
    int size = m->peers.impl.head.size, rank = m->peers.impl.head.rank;
    char why[GLOO_WHY];
    for (int k = 1; k < size; k++) {
        int to = (rank + k) % size, from = (rank + size - k) % size;  // each its own first
        const struct collective_transfer *in = &m->peers.transfers[from], *out = &m->peers.transfers[to];
        if (in->recv_bytes) {
            m->messages[from] = gloo_message_new(m->mesh, in->recv, in->recv_bytes);
            if (gloo_message_receive(m->messages[from], from, slot_of(what, in->recv_bytes), why))
                gloo_world_gone(m->world, from, why);
        }
        if (out->send_bytes) {
            m->messages[size + to] = gloo_message_new(m->mesh, (void *)(uintptr_t)out->send, out->send_bytes);
            if (gloo_message_send(m->messages[size + to], to, slot_of(what, out->send_bytes), why))
                gloo_world_gone(m->world, to, why);
        }
    }
}

// ---------------------------------------------------------------- waits
static int check_abort(struct collective_gloo *m, const char *what) {
    struct gloo_abort a;
    char why[sizeof a.word.why + 64];
    if (!gloo_world_aborted(m->world, m->peers.channel, &a)) return 0;
    if (a.from == m->world->rank)
        snprintf(why, sizeof why, "aborted: %s", a.word.why);
    else
        snprintf(why, sizeof why, "aborted by rank %d: %s", a.from, a.word.why);
    if (a.word.lost && a.from != m->world->rank) stop_run_lost(NULL);
    return peers_fail(&m->peers, what, why);
}

// -1 when the wait is over: nothing more will come of it.
static int look_around(struct collective_gloo *m, const char *what, double start) {
    int size = m->peers.impl.head.size;
    bool missing[REDUCE_MAX] = {false};
    char why[GLOO_WHY], text[GLOO_WHY + 64];
    // To ask for each message costs some microseconds: not before it matters.
    bool asks = atomic_load(&m->world->gone) || now_seconds() - start > m->peers.impl.head.deadline_s / 2;
    if (check_abort(m, what)) return -1;
    for (int i = 0; i < 2 * size && asks; i++)
        if (m->messages[i] && gloo_message_wait(m->messages[i], 0, why) > 0)
            gloo_message_free(&m->messages[i]);
        else if (m->messages[i])
            missing[i % size] = true;
    int gone = gloo_world_find_gone(m->world, missing, why);
    if (gone < 0) return peers_check_deadline(&m->peers, what, start, missing);
    snprintf(text, sizeof text, "rank %d is gone: %s", gone, why);
    return peers_lose(&m->peers, what, text);
}

// Until none is under way.
static int wait_all(struct collective_gloo *m, const char *what) {
    int rc = 0, n = 2 * m->peers.impl.head.size;
    double start = now_seconds();
    char why[GLOO_WHY];
    peers_wait_begins(&m->peers);
    for (int i = 0; i < n && !rc;) {
        int done = m->messages[i] ? gloo_message_wait(m->messages[i], SLICE_MS, why) : 1;
        if (done > 0 && m->messages[i]) gloo_message_free(&m->messages[i]);
        if (done < 0) {
            gloo_world_gone(m->world, i % m->peers.impl.head.size, why);
            nanosleep(&(struct timespec){.tv_nsec = SLICE_MS * 1000000L}, NULL);
        }
        if (done > 0)
            i++;
        else
            rc = look_around(m, what, start);
    }
    peers_wait_ends(&m->peers);
    if (rc) drop_messages(m);
    return rc;
}

static int begin_exchange(struct collective_peers *p, enum collective_primitive primitive) {
    // A recv receives what a send has sent.
    post(of(p), primitive == COLLECTIVE_RECV ? COLLECTIVE_SEND : (int)primitive);
    return 0;
}

static int end_exchange(struct collective_peers *p, enum collective_primitive primitive) {
    if (wait_all(of(p), collective_name(primitive))) return -1;
    peers_count(p, primitive, 0, SIZE_MAX);
    return 0;
}

// ---------------------------------------------------------------- the table
static void gloo_abort(struct collective *c, const char *why) {
    struct collective_gloo *m = (struct collective_gloo *)c;
    gloo_world_abort(m->world, m->peers.channel, why);
}

// Later calls read the error that this keeps.
static bool gloo_aborted(struct collective *c, char *why, size_t why_bytes) {
    struct collective_gloo *m = (struct collective_gloo *)c;
    if (!atomic_load(&m->peers.impl.failed) && check_abort(m, "abort") == 0) return false;
    snprintf(why, why_bytes, "%s", collective_error(c));
    return true;
}

static void gloo_destroy(struct collective *c) {
    struct collective_gloo *m = (struct collective_gloo *)c;
    rank_pulse_computes(m->world->pulse, NULL);
    drop_messages(m);
    if (m->mesh && m->mesh != m->world->words) gloo_mesh_close(&m->mesh);
    free(m->messages);
    free(m->own_staging);
    peers_fini(&m->peers);
    free(m);
}

static const struct collective_ops gloo_ops = {
    .name = "gloo",
    .enqueue = collective_impl_enqueue,
    .abort = gloo_abort,
    .aborted = gloo_aborted,
    .destroy = gloo_destroy,
};

// Every rank does so at the same place. 0, or -1 after keeping the error.
static int connect_channel(struct collective_gloo *m) {
    static const char what[] = "connecting a channel";
    int size = m->world->size, rc = -1;
    size_t bytes = GLOO_ADDRESS_BYTES;
    char why[GLOO_WHY], *mine = xcalloc((size_t)size, bytes), *theirs = xcalloc((size_t)size, bytes);
    struct gloo_mesh *mesh =
        gloo_mesh_open(m->world->net, m->world->rank, size, m->peers.impl.head.deadline_s, mine, why);
    if (mesh) {
        m->mesh = m->world->words;
        for (int i = 0; i < size; i++)
            m->peers.transfers[i] = (struct collective_transfer){mine + (size_t)i * bytes,
                                                                 theirs + (size_t)i * bytes, bytes, bytes};
        post(m, SLOT_ADDRESSES + m->world->opened++);
        rc = wait_all(m, what);
        m->mesh = mesh;
    } else {
        peers_fail(&m->peers, what, why);
    }
    for (int i = 0; i < size && !rc; i++)
        if (i != m->world->rank && gloo_mesh_connect(mesh, i, theirs + (size_t)i * bytes, why)) {
            char text[GLOO_WHY + 64];
            snprintf(text, sizeof text, "no connection with rank %d: %s", i, why);
            rc = peers_fail(&m->peers, what, text);
        }
    free(mine);
    free(theirs);
    return rc;
}

static const struct peers_engine exchange = {.begin = begin_exchange, .end = end_exchange};

static struct collective *create(void *world, int rank, int channel, const struct collective_options *o) {
    struct gloo_world *w = world;
    struct collective_gloo *m = xcalloc(1, sizeof *m);
    struct collective_options own = *o;
    (void)rank;
    if (o->mode == REDUCE_NATIVE && w->size > 1) {
        free(m);
        fail(
            "\"reduce\": \"native\": Gloo's own sums end at a timeout, whether a rank is dead or slow; leave \"reduce\" out");
        return NULL;
    }
    if (!o->staging && !o->host_staging && w->size > 1) {
        own.staging_bytes = (size_t)(w->size - 1) * OWN_STAGING;
        own.staging = m->own_staging = xcalloc(1, own.staging_bytes);
    }
    if (peers_init(&m->peers, &gloo_ops, w->rank, w->size, channel, &own)) {
        free(m->own_staging);
        free(m);
        return NULL;
    }
    m->peers.engine = &exchange;
    m->peers.pulse = w->pulse;
    m->peers.broken = &w->broken;
    m->peers.lost = &w->lost;
    m->world = w;
    m->messages = xcalloc(2 * (size_t)w->size, sizeof *m->messages);
    if (w->size == 1 || connect_channel(m) == 0) {
        if (o->dev) rank_pulse_computes(w->pulse, o->dev);
        return &m->peers.impl.head;
    }
    fail("rank %d: %s", w->rank, collective_error(&m->peers.impl.head));
    gloo_destroy(&m->peers.impl.head);
    return NULL;
}

extern const struct gloo_engine starring_gloo_engine;
const struct gloo_engine starring_gloo_engine = {gloo_world_start, gloo_world_end, create};
