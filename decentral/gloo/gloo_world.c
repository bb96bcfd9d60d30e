// A process's part of the world over Gloo: its connections, and what ranks say to each other beside their calls: that they live
// (rank_pulse.h), and that they give up. A mesh of its own carries these words; the pulse's thread looks after them.
//
// A rank that ends, however it does, closes its connections. To one that needs nothing of it any more that is no news; one that
// waits for it gives it a moment, in which what was sent before arrives: the last messages, and why it ends.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "decentral/gloo/gloo_impl.h"
#include "shared/core/error.h"

#define LOOKS        16   // peers a tick, so that a look at all of many costs no core
#define GONE_S       0.3  // the moment
#define LAST_WORDS_S 0.5  // at most, for an abort to leave this process

// ---------------------------------------------------------------- to others
// With the lock held. A rank that is gone hears nothing, and is missed elsewhere.
static void post(struct gloo_world *w, int to, const struct gloo_word *word) {
    struct gloo_letter *l = &w->peers[to].out[word->kind];
    char why[GLOO_WHY];
    if (l->message) gloo_message_free(&l->message);
    l->word = *word;
    l->under_way = true;
    l->message = gloo_message_new(w->words, &l->word, sizeof l->word);
    if (gloo_message_send(l->message, to, SLOT_WORD, why)) gloo_message_free(&l->message);
}

static bool send_pulse(void *ctx, int to, enum pulse_word word, char at) {
    struct gloo_world *w = ctx;
    pthread_mutex_lock(&w->lock);
    bool free = !w->peers[to].out[word].under_way;
    if (free) post(w, to, &(struct gloo_word){.kind = (int)word, .at = at});
    pthread_mutex_unlock(&w->lock);
    return free;
}

void gloo_world_abort(struct gloo_world *w, int channel, const char *why) {
    struct gloo_word word = {.kind = WORD_ABORT + channel, .lost = atomic_load(&w->lost)};
    snprintf(word.why, sizeof word.why, "%s", why);
    atomic_store(&w->broken, true);
    pthread_mutex_lock(&w->lock);
    for (int i = 0; i < w->size; i++)
        if (i != w->rank && !w->peers[i].out[word.kind].under_way) post(w, i, &word);
    if (w->aborts[channel].from < 0) w->aborts[channel] = (struct gloo_abort){w->rank, word};
    pthread_mutex_unlock(&w->lock);
}

// ---------------------------------------------------------------- from others; by the pulse's thread
static void listen_to(struct gloo_world *w, int from) {
    struct gloo_letter *l = &w->peers[from].in;
    char why[GLOO_WHY];
    if (l->message) gloo_message_free(&l->message);
    l->message = gloo_message_new(w->words, &l->word, sizeof l->word);
    if (!gloo_message_receive(l->message, from, SLOT_WORD, why)) return;
    gloo_message_free(&l->message);
    gloo_world_gone(w, from, why);
}

static void hear(struct gloo_world *w, int from, struct rank_pulse *p) {
    struct gloo_peer *peer = &w->peers[from];
    struct gloo_word word = peer->in.word;
    int channel = word.kind - WORD_ABORT;
    pthread_mutex_lock(&w->lock);
    if (word.kind == WORD_ASK) peer->out[WORD_TELL].under_way = false;
    if (word.kind == WORD_TELL) peer->out[WORD_ASK].under_way = false;
    if (channel >= 0 && channel < COLLECTIVE_CHANNELS && w->aborts[channel].from < 0)
        w->aborts[channel] = (struct gloo_abort){from, word};
    pthread_mutex_unlock(&w->lock);
    if (channel < 0) rank_pulse_heard(p, from, (enum pulse_word)word.kind, word.at);
}

static void look(void *ctx, struct rank_pulse *p) {
    struct gloo_world *w = ctx;
    char why[GLOO_WHY];
    for (int k = 0; k < LOOKS && k < w->size; k++) {
        int i = w->next;
        struct gloo_letter *in = &w->peers[i].in;
        int came = in->message ? gloo_message_wait(in->message, 0, why) : 0;
        w->next = (i + 1) % w->size;
        if (came > 0) hear(w, i, p);
        if (came > 0) listen_to(w, i);
        if (came >= 0) continue;
        gloo_message_free(&in->message);
        gloo_world_gone(w, i, why);
    }
}

// ---------------------------------------------------------------- what is known of them
bool gloo_world_aborted(struct gloo_world *w, int channel, struct gloo_abort *out) {
    pthread_mutex_lock(&w->lock);
    *out = w->aborts[channel];
    pthread_mutex_unlock(&w->lock);
    return out->from >= 0;
}

void gloo_world_gone(struct gloo_world *w, int peer, const char *why) {
    pthread_mutex_lock(&w->lock);
    if (w->peers[peer].gone_s == 0) {
        w->peers[peer].gone_s = now_seconds();
        atomic_store(&w->gone, true);
        snprintf(w->peers[peer].why, sizeof w->peers[peer].why, "%s", why);
    }
    pthread_mutex_unlock(&w->lock);
}

int gloo_world_find_gone(struct gloo_world *w, const bool *missing, char *why) {
    int found = -1;
    double now = now_seconds();
    pthread_mutex_lock(&w->lock);
    for (int i = 0; i < w->size && found < 0; i++)
        if (missing[i] && w->peers[i].gone_s > 0 && now - w->peers[i].gone_s > GONE_S) found = i;
    if (found >= 0) snprintf(why, GLOO_WHY, "%s", w->peers[found].why);
    pthread_mutex_unlock(&w->lock);
    return found;
}

// ---------------------------------------------------------------- life
static int connect_all(struct gloo_world *w, const struct gloo_world_options *o) {
    size_t bytes = (size_t)w->size * GLOO_ADDRESS_BYTES;
    char why[GLOO_WHY] = "", *mine = xcalloc(1, bytes), *all = xcalloc((size_t)w->size, bytes);
    int rc = -1;
    w->net = gloo_net_open(o->address, why);
    if (w->net) w->words = gloo_mesh_open(w->net, w->rank, w->size, o->deadline_s, mine, why);
    if (!w->words) fail("Gloo: rank %d cannot listen at %s: %s", w->rank, o->address, why);
    if (w->words) rc = o->meet(o->ctx, mine, bytes, all);
    for (int i = 0; i < w->size && !rc; i++) {
        const char *theirs = all + (size_t)i * bytes + (size_t)w->rank * GLOO_ADDRESS_BYTES;
        if (i != w->rank && gloo_mesh_connect(w->words, i, theirs, why))
            rc = fail(
                "Gloo: rank %d, at %s, has no connection with rank %d: %s; each must reach the other on any port",
                w->rank, o->address, i, why);
    }
    for (int i = 0; i < w->size && !rc; i++)
        if (i != w->rank) listen_to(w, i);
    free(mine);
    free(all);
    return rc;
}

int gloo_world_start(struct gloo_world **out, const struct gloo_world_options *o) {
    static const struct pulse_ways ways = {send_pulse, look};
    if (o->size > REDUCE_MAX) return fail("%d ranks over Gloo; at most %d are possible", o->size, REDUCE_MAX);
    struct gloo_world *w = xcalloc(1, sizeof *w);
    w->rank = o->rank;
    w->size = o->size;
    w->peers = xcalloc((size_t)w->size, sizeof *w->peers);
    pthread_mutex_init(&w->lock, NULL);
    atomic_init(&w->broken, false);
    atomic_init(&w->lost, false);
    atomic_init(&w->gone, false);
    for (int i = 0; i < COLLECTIVE_CHANNELS; i++) w->aborts[i].from = -1;
    int rc = w->size > 1 ? connect_all(w, o) : 0;
    if (!rc) w->pulse = rank_pulse_start(w->rank, w->size, &ways, w);
    if (!w->pulse) gloo_world_end(&w);
    *out = w;
    return w ? 0 : -1;
}

// Frees a rank's letters.
static void end_letters(struct gloo_peer *p, double until) {
    char why[GLOO_WHY];
    for (int kind = 0; kind < WORD_KINDS; kind++) {
        struct gloo_message **m = &p->out[kind].message;
        while (*m && kind >= WORD_ABORT && now_seconds() < until && !gloo_message_wait(*m, 10, why)) continue;
        if (*m) gloo_message_free(m);
    }
    if (p->in.message) gloo_message_free(&p->in.message);
}

void gloo_world_end(struct gloo_world **world) {
    struct gloo_world *w = *world;
    double until = now_seconds() + LAST_WORDS_S;
    if (!w) return;
    rank_pulse_stop(&w->pulse);
    for (int i = 0; i < w->size; i++) end_letters(&w->peers[i], until);
    if (w->words) gloo_mesh_close(&w->words);
    if (w->net) gloo_net_close(&w->net);
    pthread_mutex_destroy(&w->lock);
    free(w->peers);
    free(w);
    *world = NULL;
}
