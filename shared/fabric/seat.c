#include "shared/fabric/seat.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/core/error.h"

#define LIMIT_S      2.0  // the least time without an answer after which something is lost
#define LIMIT_MOST_S 32.0
#define PAUSE_MOST_S 16.0  // between two questions for what nobody has put
#define COME_MOST_S  8.0
#define FIRST_WINDOW (2 * MEET_PIECE)

// ---------------------------------------------------------------- how much is under way
static bool has_room(const struct seat_pace *p, size_t bytes) {
    return !p->under_way || p->under_way + bytes <= p->window;
}

// again: it was said before, so that nobody knows what an answer is to.
static void leaves(struct seat_pace *p, size_t bytes, const void *what, uint64_t at, bool again,
                   double now_s) {
    p->under_way += bytes;
    if (again || p->timed_s > 0) return;
    p->timed_s = now_s;
    p->timed = what;
    p->timed_at = at;
}

static void measured(struct seat_pace *p, double trip_s) {
    rto_sample(&p->rto, trip_s);
    p->timed_s = 0;
}

// In answer to what was under way: the window grows to what the link takes, and the pause is no longer than it has to be.
static void arrives(struct seat_pace *p, size_t bytes) {
    double least_s = rto_measured_s(&p->rto);
    p->under_way -= bytes < p->under_way ? bytes : p->under_way;
    p->window += bytes;
    if (p->window > MEET_WINDOW) p->window = MEET_WINDOW;
    p->limit_s /= 2;
    if (p->limit_s < least_s) p->limit_s = least_s;
    if (p->limit_s < LIMIT_S) p->limit_s = LIMIT_S;
}

// What is under way is lost: one piece is said again, and what was said twice measures nothing.
static void is_lost(struct seat_pace *p) {
    p->window = MEET_PIECE + sizeof(struct meet_message);
    p->limit_s = 2 * p->limit_s < LIMIT_MOST_S ? 2 * p->limit_s : LIMIT_MOST_S;
    p->timed_s = 0;
}

// ---------------------------------------------------------------- opening
static bool is_cast(const struct seat *s) { return s->rank >= s->size; }

void seat_open(struct seat *s, const struct meet_come *c, const char *identity) {
    if (!s->first) s->first = "rank 0";
    if (!(s->beat_s > 0)) s->beat_s = MEET_AGAIN_S;
    s->first_lost = -1;
    s->turns = (struct turn_clock){.lost_s = s->silent_s, .pause_s = MEET_PAUSE_S};
    s->up = s->down = (struct seat_pace){.window = FIRST_WINDOW, .limit_s = LIMIT_S};
    s->lost = xcalloc((size_t)s->size, sizeof *s->lost);
    s->come_bytes = sizeof *c + strlen(identity);
    s->come = xcalloc(1, s->come_bytes + 1);
    memcpy(s->come, c, sizeof *c);
    memcpy((char *)s->come + sizeof *c, identity, strlen(identity));
    s->table = (struct seat_want){.named.name = MEET_TABLE};
    if (!is_cast(s)) seat_want(s, &s->table);
}

bool seat_in(const struct seat *s) { return is_cast(s) ? s->begun : s->members != NULL; }

void seat_end(struct seat *s, enum meet_end end, const char *why) {
    if (s->end) return;
    s->end = end;
    snprintf(s->ended, sizeof s->ended, "%s", *why ? why : "no reason is known");
}

// ---------------------------------------------------------------- what is said until it is heard
struct seat_put {
    enum meet_kind kind;
    char name[MEET_NAME_MAX];
    char *data;
    size_t bytes;
    uint64_t first, last;  // numbers of its pieces
    struct seat_put *next;
};

void seat_put(struct seat *s, enum meet_kind kind, const char *name, const void *data, size_t bytes) {
    struct seat_put *p = xcalloc(1, sizeof *p);
    *p = (struct seat_put){
        .kind = kind, .data = meet_copy(data, bytes), .bytes = bytes, .first = s->given + 1};
    p->last = s->given += bytes ? (bytes + MEET_PIECE - 1) / MEET_PIECE : 1;
    snprintf(p->name, sizeof p->name, "%s", name);
    if (s->last)
        s->last->next = p;
    else
        s->puts = p;
    s->last = p;
    if (!s->at) s->at = p;
}

bool seat_heard(const struct seat *s) { return s->acknowledged == s->given; }

static size_t piece_bytes(const struct seat_put *p, uint64_t number) {
    return number < p->last ? MEET_PIECE : p->bytes - (p->last - p->first) * MEET_PIECE;
}

static size_t piece_cost(const struct seat_put *p, uint64_t number) {
    return sizeof(struct meet_message) + piece_bytes(p, number);
}

static void say_seat(struct seat *s, struct meet_message m, const void *data) {
    m.size = s->size;
    s->say(s->ctx, s->rank, s->life, &m, data);
}

static void say_piece(struct seat *s, const struct seat_put *p, uint64_t number) {
    struct meet_message m = meet_message(p->kind, s->rank, s->life);
    m.number = number;
    m.at = (number - p->first) * MEET_PIECE;
    m.total = p->bytes;
    m.bytes = piece_bytes(p, number);
    memcpy(m.name, p->name, sizeof m.name);
    say_seat(s, m, p->data + m.at);
}

static void say_puts(struct seat *s, double now_s) {
    if (s->said > s->acknowledged && now_s - s->progress_s > s->up.limit_s) {
        is_lost(&s->up);
        s->up.under_way = 0;
        s->said = s->acknowledged;
        s->at = s->puts;
    }
    while (s->at) {
        size_t cost = piece_cost(s->at, s->said + 1);
        if (!has_room(&s->up, cost)) return;
        if (s->said == s->acknowledged) s->progress_s = now_s;
        const struct seat_put *p = s->at;
        bool again = ++s->said <= s->farthest;
        leaves(&s->up, cost, NULL, s->said, again, now_s);
        if (!again) s->farthest = s->said;
        if (s->said == p->last) s->at = p->next;
        say_piece(s, p, s->said);
    }
}

static void heard(struct seat *s, uint64_t number, double now_s) {
    if (number > s->given || number <= s->acknowledged) return;
    if (s->up.timed_s > 0 && number >= s->up.timed_at) measured(&s->up, now_s - s->up.timed_s);
    while (s->acknowledged < number) {
        struct seat_put *p = s->puts;
        arrives(&s->up, piece_cost(p, ++s->acknowledged));
        // Said before it was said again: it was on its way.
        if (s->said < s->acknowledged) s->said = s->acknowledged;
        if (s->acknowledged < p->last) continue;
        if (s->at == p) s->at = p->next;
        s->puts = p->next;
        if (!s->puts) s->last = NULL;
        free(p->data);
        free(p);
    }
    s->progress_s = now_s;
}

// ---------------------------------------------------------------- what is wanted until it is there
void seat_want(struct seat *s, struct seat_want *w) {
    w->next = s->wants;
    w->at = &s->wants;
    if (w->next) w->next->at = &w->next;
    s->wants = w;
    meet_names_add(&s->names, &w->named);
    s->due_s = 0;
}

// What was asked for of it is not under way any more.
static void give_up(struct seat *s, struct seat_want *w) {
    s->down.under_way -= w->asked - w->came;
    w->asked = w->came;
    if (s->down.timed == w) s->down.timed_s = 0;
}

void seat_unwant(struct seat *s, struct seat_want *w) {
    give_up(s, w);
    free(w->coming);
    w->coming = NULL;
    *w->at = w->next;
    if (w->next) w->next->at = w->at;
    meet_names_remove(&s->names, &w->named);
}

static void say_get(struct seat *s, const struct seat_want *w, uint64_t at) {
    struct meet_message m = meet_message(MEET_GET, s->rank, s->life);
    memcpy(m.name, w->named.name, sizeof m.name);
    m.number = w->number;
    m.at = at;
    say_seat(s, m, NULL);
}

// The rest of what has begun to come.
static void ask_on(struct seat *s, struct seat_want *w, double now_s) {
    if (w->asked > w->came && now_s >= w->ask_s) {
        give_up(s, w);
        is_lost(&s->down);
    }
    while (w->asked < w->bytes) {
        size_t left = w->bytes - w->asked, bytes = left < MEET_PIECE ? left : MEET_PIECE;
        if (!has_room(&s->down, bytes)) return;
        if (w->asked == w->came) w->ask_s = now_s + s->down.limit_s;
        leaves(&s->down, bytes, w, w->asked, w->asked < w->farthest, now_s);
        say_get(s, w, w->asked);
        w->asked += bytes;
        if (w->farthest < w->asked) w->farthest = w->asked;
    }
}

static void ask(struct seat *s, double now_s) {
    if (now_s < s->due_s) return;
    s->due_s = now_s + PAUSE_MOST_S;
    for (struct seat_want *w = s->wants; w; w = w->next) {
        if (w->data) continue;
        if (w->coming)
            ask_on(s, w, now_s);
        else if (now_s >= w->ask_s) {
            w->pause_s = w->pause_s == 0                 ? LIMIT_S
                         : 2 * w->pause_s < PAUSE_MOST_S ? 2 * w->pause_s
                                                         : PAUSE_MOST_S;
            w->ask_s = now_s + w->pause_s;
            say_get(s, w, 0);
        }
        if (w->ask_s < s->due_s) s->due_s = w->ask_s;
    }
}

static void got(struct seat *s, struct seat_want *w, const struct meet_message *m, const void *data,
                double now_s) {
    if (w->data) return;
    bool other = !w->coming || w->number != m->number;
    if (!meet_goes_on(m, other ? 0 : w->came) || (!other && m->total != w->bytes)) return;
    if (other) {
        give_up(s, w);
        free(w->coming);
        w->coming = xcalloc(1, m->total + 1);
        w->bytes = m->total;
        w->number = m->number;
        w->came = w->asked = w->farthest = 0;
    }
    if (s->down.timed_s > 0 && s->down.timed == w && s->down.timed_at == w->came)
        measured(&s->down, now_s - s->down.timed_s);
    if (m->bytes) memcpy(w->coming + w->came, data, m->bytes);
    w->came += m->bytes;
    if (w->asked < w->came)
        w->asked = w->came;
    else
        arrives(&s->down, m->bytes);
    w->ask_s = now_s + s->down.limit_s;
    s->due_s = 0;
    if (w->came < w->bytes) return;
    w->data = w->coming;
    w->coming = NULL;
}

// ---------------------------------------------------------------- what rank 0 says
static void lost(struct seat *s, int rank) {
    if (rank < 0 || rank >= s->size || s->lost[rank]) return;
    s->lost[rank] = true;
    s->losses++;
    if (s->first_lost < 0) s->first_lost = rank;
    char *why = xasprintf("%s at %s has given this rank up: it did not hear of it for %g s", s->first,
                          s->place, s->silent_s);
    if (rank == s->rank) seat_end(s, MEET_LOST_ME, why);
    free(why);
}

// Ranks, of which those in front are known.
static void hear_losses(struct seat *s, const struct meet_message *m, const char *data) {
    if (!s->members || m->number > (uint64_t)s->losses) return;
    for (uint64_t i = (uint64_t)s->losses - m->number; i < m->bytes / sizeof(int); i++) {
        int rank;
        memcpy(&rank, data + i * sizeof rank, sizeof rank);
        lost(s, rank);
    }
}

static void all_are_here(struct seat *s) {
    s->members = meet_table_read(s->table.data, s->table.bytes, s->size);
    seat_unwant(s, &s->table);
    free(s->table.data);
    s->table = (struct seat_want){0};
    for (int i = 0; s->members && i < s->size; i++)
        if (s->members[i].machine < 0)
            lost(s, i);  // from the start, as the book counts it: no wait ends by it
    if (s->members) return;
    char *why = xasprintf("%s says who is there in words of another version: install one for all", s->first);
    seat_end(s, MEET_OUT_ME, why);
    free(why);
}

void seat_hear(struct seat *s, const struct meet_message *m, const void *data, double now_s) {
    bool back = s->gone_s > 0;
    s->heard = true;
    s->heard_s = turn_clock_at(&s->turns, now_s);
    s->gone_s = 0;
    char *text = m->kind == MEET_GOT ? NULL : meet_copy(data, m->bytes);
    if (m->kind == MEET_WAITING) snprintf(s->waiting, sizeof s->waiting, "%s", text);
    // One that comes and goes again and again is no progress.
    if (m->kind == MEET_WAITING && (!s->missing || m->number < s->missing)) {
        s->missing = m->number;
        s->came_s = now_s;
    }
    bool known = m->number >= MEET_JOB_OVER && m->number <= MEET_OUT_ME;
    if (m->kind == MEET_REFUSED) seat_end(s, MEET_OUT_ME, text);
    if (m->kind == MEET_ENDED) seat_end(s, known ? (enum meet_end)m->number : MEET_JOB_OVER, text);
    if (m->kind == MEET_PONG) heard(s, m->number, now_s);
    if (m->kind == MEET_LOST) hear_losses(s, m, text);
    struct meet_named *it = NULL;
    while (m->kind == MEET_GOT && (it = meet_names_find(&s->names, m->name, it)))
        got(s, (struct seat_want *)it, m, data, now_s);
    if (s->table.data) all_are_here(s);
    // What was on its way when the connection broke, or when all had come, is asked for at once.
    bool begins = m->kind == MEET_PONG && !s->begun;
    s->begun = s->begun || begins;
    for (struct seat_want *w = s->wants; w && (back || (begins && !seat_in(s))); w = w->next)
        w->ask_s = w->pause_s = 0;
    if (back || begins) s->due_s = 0;
    if (back) s->progress_s = 0;
    free(text);
}

void seat_unreachable(struct seat *s, double now_s) {
    if (!s->gone_s) s->gone_s = turn_clock_at(&s->turns, now_s);
}

// Ends a seat whose book is not heard any more.
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

// Says COME until the seat is let in. From then on an answered ping shows that member 0 knows of this process.
static void come(struct seat *s, double turn_s, double now_s) {
    struct meet_message m = meet_message(MEET_COME, s->rank, s->life);
    bool known = s->heard && turn_s - s->heard_s < 3 * s->beat_s;
    if (known || *s->ended || now_s < s->come_s) return;
    double next_s = 2 * s->come_pause_s < COME_MOST_S ? 2 * s->come_pause_s : COME_MOST_S;
    s->come_pause_s = s->come_pause_s > 0 ? next_s : MEET_AGAIN_S;
    s->come_s = now_s + s->come_pause_s;
    m.bytes = s->come_bytes;
    say_seat(s, m, s->come);
}

void seat_tick(struct seat *s, double now_s) {
    double turn_s = turn_clock_turn(&s->turns, now_s);
    struct meet_message m = meet_message(MEET_PING, s->rank, s->life);
    miss(s, turn_s);
    if (s->still) return;
    if (!seat_in(s)) come(s, turn_s, now_s);
    m.number = (uint64_t)s->losses;
    if (s->heard && meet_due(&s->ping_s, s->beat_s, now_s)) say_seat(s, m, NULL);
    if (seat_in(s)) say_puts(s, now_s);
    if (s->heard && !(*s->ended && !seat_in(s))) ask(s, now_s);
}

void seat_close(struct seat *s) {
    for (struct seat_put *p = s->puts, *next; p; p = next) {
        next = p->next;
        free(p->data);
        free(p);
    }
    if (s->table.at) seat_unwant(s, &s->table);
    for (struct seat_want *w = s->wants, *next; w; w = next) {
        next = w->next;
        free(w->coming);
        if (!w->looks) continue;
        free(w->data);
        free(w);
    }
    free(s->names.rows);
    free(s->come);
    free(s->members);
    free(s->lost);
}
