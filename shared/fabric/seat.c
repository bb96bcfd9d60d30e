#include "shared/fabric/seat.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/core/error.h"
#include "shared/fabric/rto.h"

#define COME_MOST_S 8.0

// ---------------------------------------------------------------- opening
static bool is_cast(const struct seat *s) { return s->rank >= s->size; }

static void say_seat(void *ctx, int peer, struct meet_message *m, const void *data) {
    struct seat *s = ctx;
    (void)peer;
    m->rank = s->rank;
    m->life = s->life;
    m->size = s->size;
    if (!s->still) s->say(s->ctx, s->rank, s->life, m, data);
}

void seat_open(struct seat *s, const struct meet_come *c, const char *identity) {
    if (!s->first) s->first = "rank 0";
    if (!(s->beat_s > 0)) s->beat_s = MEET_AGAIN_S;
    s->first_lost = -1;
    s->turns = (struct turn_clock){.lost_s = s->silent_s, .pause_s = MEET_PAUSE_S};
    s->post = post_open(1, say_seat, s);
    s->lost = xcalloc((size_t)s->size, sizeof *s->lost);
    s->come_bytes = sizeof *c + strlen(identity);
    s->come = xcalloc(1, s->come_bytes + 1);
    memcpy(s->come, c, sizeof *c);
    memcpy((char *)s->come + sizeof *c, identity, strlen(identity));
}

bool seat_in(const struct seat *s) { return is_cast(s) ? s->begun : s->members != NULL; }

void seat_end(struct seat *s, enum meet_end end, const char *why) {
    if (s->end) return;
    s->end = end;
    snprintf(s->ended, sizeof s->ended, "%s", *why ? why : "no reason is known");
}

// ---------------------------------------------------------------- sending, and names that are wanted
void seat_put(struct seat *s, enum meet_kind kind, const char *name, const void *data, size_t bytes) {
    struct meet_message m = meet_message(kind, s->rank, s->life);
    snprintf(m.name, sizeof m.name, "%s", name);
    m.count = s->gets;
    post_put(s->post, 0, &m, meet_value_of(meet_copy(data, bytes), bytes));
}

bool seat_heard(const struct seat *s) { return post_heard(s->post, 0); }

void seat_want(struct seat *s, struct seat_want *w) {
    w->next = s->wants;
    w->at = &s->wants;
    if (w->next) w->next->at = &w->next;
    s->wants = w;
    meet_names_add(&s->names, &w->named);
    w->asked = ++s->gets;
    seat_put(s, MEET_GET, w->named.name, NULL, 0);
}

void seat_unwant(struct seat *s, struct seat_want *w) {
    *w->at = w->next;
    if (w->next) w->next->at = w->at;
    meet_names_remove(&s->names, &w->named);
}

// Gives the value to all wants that the book knew of when it sent it; one of them gets it without a copy.
static void got(struct seat *s, const struct meet_message *m, struct meet_value *v) {
    const void *first = NULL;
    for (struct meet_named *it = NULL; (it = meet_names_find(&s->names, m->name, it));) {
        struct seat_want *w = (struct seat_want *)it;
        if (w->data || w->asked > m->count) continue;
        w->data = first ? meet_copy(first, v->bytes) : v->data;
        w->bytes = v->bytes;
        first = w->data;
        v->data = NULL;
    }
}

// ---------------------------------------------------------------- messages of rank 0
static void lost(struct seat *s, int rank) {
    if (rank < 0 || rank >= s->size || s->lost[rank]) return;
    s->lost[rank] = true;
    s->losses++;
    if (s->first_lost < 0) s->first_lost = rank;
}

static void all_are_here(struct seat *s, const void *table, size_t bytes) {
    s->members = meet_table_read(table, bytes, s->size);
    for (int i = 0; s->members && i < s->size; i++)
        if (s->members[i].machine < 0)
            lost(s, i);  // lost from the start, as the book counts it: no wait ends because of it
    if (s->members) return;
    char *why = xasprintf("%s says who is there in words of another version: install one for all", s->first);
    seat_end(s, MEET_OUT_ME, why);
    free(why);
}

static void hear(struct seat *s, const struct meet_message *m, struct meet_value *v, double now_s) {
    const char *data = v->data;
    int rank;
    if (m->kind == MEET_WAITING) snprintf(s->waiting, sizeof s->waiting, "%s", data);
    // A rank that joins and leaves again and again is no progress.
    if (m->kind == MEET_WAITING && (!s->missing || m->count < s->missing)) {
        s->missing = m->count;
        s->came_s = now_s;
    }
    bool known = m->count >= MEET_JOB_OVER && m->count <= MEET_OUT_ME;
    if (m->kind == MEET_REFUSED) seat_end(s, MEET_OUT_ME, data);
    if (m->kind == MEET_ENDED) seat_end(s, known ? (enum meet_end)m->count : MEET_JOB_OVER, data);
    if (m->kind == MEET_PONG) s->begun = true;
    for (size_t at = 0; m->kind == MEET_LOST && v->bytes - at >= sizeof rank; at += sizeof rank) {
        memcpy(&rank, data + at, sizeof rank);
        lost(s, rank);
    }
    if (m->kind != MEET_GOT) return;
    if (!s->members && !strcmp(m->name, MEET_TABLE))
        all_are_here(s, data, v->bytes);
    else
        got(s, m, v);
}

void seat_hear(struct seat *s, const struct meet_message *m, const void *data, double now_s) {
    s->heard = true;
    s->heard_s = turn_clock_at(&s->turns, now_s);
    s->gone_s = 0;
    struct meet_value *v = post_hear(s->post, 0, m, data, now_s);
    if (!m->number) v = meet_value_of(meet_copy(data, m->bytes), m->bytes);
    if (v) hear(s, m, v, now_s);
    meet_value_free(v);
    post_push(s->post, 0, seat_in(s));
}

void seat_unreachable(struct seat *s, double now_s) {
    if (!s->gone_s) s->gone_s = turn_clock_at(&s->turns, now_s);
}

// Ends a seat whose book is silent for too long.
static void miss(struct seat *s, double turn_s) {
    bool gone = s->gone_s && turn_s - s->gone_s > MEET_GONE_S;
    if (!gone && (!s->heard || turn_s - s->heard_s <= s->silent_s)) return;
    char stood[TURN_CLOCK_WORDS];
    turn_clock_words(&s->turns, gone ? s->gone_s : s->heard_s, stood);
    char *why =
        gone ? xasprintf("%s at %s has gone%s", s->first, s->place, stood)
             : xasprintf("%s at %s has not been heard for %g s%s", s->first, s->place, s->silent_s, stood);
    seat_end(s, MEET_FIRST_GONE, why);
    free(why);
}

// Sends COME until the seat is let in. After that, an answered ping shows that member 0 knows this process.
static void come(struct seat *s, double turn_s, double now_s) {
    struct meet_message m = meet_message(MEET_COME, s->rank, s->life);
    bool known = s->heard && turn_s - s->heard_s < 3 * s->beat_s;
    if (known || *s->ended || now_s < s->come_s) return;
    s->come_s = now_s + rto_backoff(MEET_AGAIN_S, s->comes++, COME_MOST_S);
    m.bytes = s->come_bytes;
    say_seat(s, 0, &m, s->come);
}

void seat_tick(struct seat *s, double now_s) {
    double turn_s = turn_clock_turn(&s->turns, now_s);
    miss(s, turn_s);
    if (!seat_in(s)) come(s, turn_s, now_s);
    if (s->heard && meet_due(&s->ping_s, s->beat_s, now_s)) {
        struct meet_message m = meet_message(MEET_PING, s->rank, s->life);
        m.count = s->is_at ? (uint64_t)s->is_at(s->is_at_ctx) : 0;
        post_say(s->post, 0, m, NULL);
    }
    post_push(s->post, 0, seat_in(s));
    post_tick(s->post, now_s);
}

void seat_close(struct seat *s) {
    post_close(&s->post);
    for (struct seat_want *w = s->wants, *next; w; w = next) {
        next = w->next;
        if (!w->looks) continue;
        free(w->data);
        free(w);
    }
    free(s->names.rows);
    free(s->come);
    free(s->members);
    free(s->lost);
}
