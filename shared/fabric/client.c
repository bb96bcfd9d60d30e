#include "shared/fabric/client.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/core/error.h"
#include "shared/fabric/rto.h"

#define JOIN_MOST_S 8.0

// ---------------------------------------------------------------- opening
static bool is_role(const struct client *s) { return s->rank >= s->size; }

static void send_to_registry(void *ctx, int peer, struct meet_message *m, const void *data) {
    struct client *s = ctx;
    (void)peer;
    m->rank = s->rank;
    m->incarnation = s->incarnation;
    m->size = s->size;
    if (!s->frozen) s->send(s->ctx, s->rank, s->incarnation, m, data);
}

void client_open(struct client *s, const struct meet_join *c, const char *identity) {
    if (!s->member_0) s->member_0 = "rank 0";
    if (!(s->beat_s > 0)) s->beat_s = MEET_RESEND_S;
    s->first_lost = -1;
    s->turns = (struct poll_clock){.lost_s = s->silent_s, .pause_s = MEET_PAUSE_S};
    s->mailbox = mailbox_open(1, send_to_registry, s);
    s->lost = xcalloc((size_t)s->size, sizeof *s->lost);
    s->join_bytes = sizeof *c + strlen(identity);
    s->join = xcalloc(1, s->join_bytes + 1);
    memcpy(s->join, c, sizeof *c);
    memcpy((char *)s->join + sizeof *c, identity, strlen(identity));
}

bool client_has_joined(const struct client *s) { return is_role(s) ? s->begun : s->members != NULL; }

void client_end(struct client *s, enum meet_end end, const char *why) {
    if (s->end) return;
    s->end = end;
    snprintf(s->ended, sizeof s->ended, "%s", *why ? why : "no reason is known");
}

// ---------------------------------------------------------------- sending, and names that are wanted
void client_put(struct client *s, enum meet_kind kind, const char *name, const void *data, size_t bytes) {
    struct meet_message m = meet_message(kind, s->rank, s->incarnation);
    snprintf(m.name, sizeof m.name, "%s", name);
    m.count = s->gets;
    mailbox_queue(s->mailbox, 0, &m, meet_value_of(meet_copy(data, bytes), bytes));
}

bool client_is_acknowledged(const struct client *s) { return mailbox_is_acknowledged(s->mailbox, 0); }

void client_want(struct client *s, struct client_want *w) {
    w->next = s->wants;
    w->at = &s->wants;
    if (w->next) w->next->at = &w->next;
    s->wants = w;
    w->asked = ++s->gets;
    client_put(s, MEET_GET, w->name, NULL, 0);
}

void client_unwant(struct client_want *w) {
    *w->at = w->next;
    if (w->next) w->next->at = w->at;
}

// Gives the value to all wants that the registry knew of when it sent it; one of them gets it without a copy.
static void on_value(struct client *s, const struct meet_message *m, struct meet_value *v) {
    const void *member_0 = NULL;
    for (struct client_want *w = s->wants; w; w = w->next) {
        if (strcmp(w->name, m->name) != 0 || w->data || w->asked > m->count) continue;
        w->data = member_0 ? meet_copy(member_0, v->bytes) : v->data;
        w->bytes = v->bytes;
        member_0 = w->data;
        v->data = NULL;
    }
}

// ---------------------------------------------------------------- messages of rank 0
static void lost(struct client *s, int rank) {
    if (rank < 0 || rank >= s->size || s->lost[rank]) return;
    s->lost[rank] = true;
    s->losses++;
    if (s->first_lost < 0) s->first_lost = rank;
}

static void on_table(struct client *s, const void *table, size_t bytes) {
    s->members = meet_table_read(table, bytes, s->size);
    for (int i = 0; s->members && i < s->size; i++)
        if (s->members[i].machine < 0)
            lost(s, i);  // the rank was lost before the rendezvous began, so no wait ends because of it
    if (s->members) return;
    char *why =
        xasprintf("%s sends the table of ranks in another version's format: install one version on all hosts",
                  s->member_0);
    client_end(s, MEET_ENDED_ME, why);
    free(why);
}

static void on_message(struct client *s, const struct meet_message *m, struct meet_value *v, double now_s) {
    const char *data = v->data;
    int rank;
    if (m->kind == MEET_WAITING) snprintf(s->waiting, sizeof s->waiting, "%s", data);
    // Only a new lowest number of absent ranks is progress: a rank may join and leave repeatedly.
    if (m->kind == MEET_WAITING && (!s->missing || m->count < s->missing)) {
        s->missing = m->count;
        s->progress_s = now_s;
    }
    bool known = m->count >= MEET_JOB_OVER && m->count <= MEET_ENDED_ME;
    if (m->kind == MEET_REFUSED) client_end(s, MEET_ENDED_ME, data);
    if (m->kind == MEET_ENDED) client_end(s, known ? (enum meet_end)m->count : MEET_JOB_OVER, data);
    if (m->kind == MEET_PONG) s->begun = true;
    for (size_t at = 0; m->kind == MEET_LOST && v->bytes - at >= sizeof rank; at += sizeof rank) {
        memcpy(&rank, data + at, sizeof rank);
        lost(s, rank);
    }
    if (m->kind != MEET_GOT) return;
    if (!s->members && !strcmp(m->name, MEET_TABLE))
        on_table(s, data, v->bytes);
    else
        on_value(s, m, v);
}

void client_receive(struct client *s, const struct meet_message *m, const void *data, double now_s) {
    s->heard = true;
    s->heard_s = poll_clock_at(&s->turns, now_s);
    s->closed_s = 0;
    struct meet_value *v = mailbox_receive(s->mailbox, 0, m, data, now_s);
    if (!m->number) v = meet_value_of(meet_copy(data, m->bytes), m->bytes);
    if (v) on_message(s, m, v, now_s);
    meet_value_free(v);
    mailbox_flush(s->mailbox, 0, client_has_joined(s));
}

void client_unreachable(struct client *s, double now_s) {
    if (!s->closed_s) s->closed_s = poll_clock_at(&s->turns, now_s);
}

// Ends this client if the registry has been silent for too long.
static void check_member_0(struct client *s, double turn_s) {
    bool gone = s->closed_s && turn_s - s->closed_s > MEET_CLOSED_S;
    if (!gone && (!s->heard || turn_s - s->heard_s <= s->silent_s)) return;
    char stood[POLL_CLOCK_TEXT];
    poll_clock_text(&s->turns, gone ? s->closed_s : s->heard_s, stood);
    char *why =
        gone ? xasprintf("%s at %s has gone%s", s->member_0, s->where, stood)
             : xasprintf("%s at %s has sent nothing for %g s%s", s->member_0, s->where, s->silent_s, stood);
    client_end(s, MEET_MEMBER_0_LOST, why);
    free(why);
}

// Sends JOIN until the client is let in. After that, an answered ping shows that member 0 knows this process.
static void send_join(struct client *s, double turn_s, double now_s) {
    struct meet_message m = meet_message(MEET_JOIN, s->rank, s->incarnation);
    bool known = s->heard && turn_s - s->heard_s < 3 * s->beat_s;
    if (known || *s->ended || now_s < s->join_s) return;
    s->join_s = now_s + rto_backoff(MEET_RESEND_S, s->joins_sent++, JOIN_MOST_S);
    m.bytes = s->join_bytes;
    send_to_registry(s, 0, &m, s->join);
}

void client_tick(struct client *s, double now_s) {
    double turn_s = poll_clock_poll(&s->turns, now_s);
    check_member_0(s, turn_s);
    if (!client_has_joined(s)) send_join(s, turn_s, now_s);
    if (s->heard && meet_due(&s->ping_s, s->beat_s, now_s)) {
        struct meet_message m = meet_message(MEET_PING, s->rank, s->incarnation);
        m.count = s->activity ? (uint64_t)s->activity(s->activity_ctx) : 0;
        mailbox_send_once(s->mailbox, 0, m, NULL);
    }
    mailbox_flush(s->mailbox, 0, client_has_joined(s));
    mailbox_tick(s->mailbox, now_s);
}

void client_close(struct client *s) {
    mailbox_close(&s->mailbox);
    for (struct client_want *w = s->wants, *next; w; w = next) {
        next = w->next;
        if (!w->polled) continue;
        free(w->data);
        free(w);
    }
    free(s->join);
    free(s->members);
    free(s->lost);
}
