#include "shared/fabric/book.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "shared/core/error.h"
#include "shared/fabric/address.h"

#define AGAIN_S   1.0
#define PAUSE_S   0.1  // between two turns
#define STUCK_S   2.0  // without an answer all that is under way is said again
#define WINDOW    16   // numbered messages under way
#define GONE_S    3.0  // a broken connection that is not made anew by then is a process that has gone
#define BUCKETS   1024
#define NAMED_MAX 8  // ranks that a message names

static struct meet_message message(enum meet_kind kind, int rank, uint64_t life) {
    return (struct meet_message){.magic = MEET_MAGIC, .kind = kind, .rank = rank, .life = life};
}

static void *copy(const void *data, size_t bytes) {
    char *own = xcalloc(1, bytes + 1);
    if (bytes) memcpy(own, data, bytes);
    return own;
}

static bool due(double *said_s, double every_s, double now_s) {
    bool is = now_s - *said_s >= every_s;
    if (is) *said_s = now_s;
    return is;
}

// ---------------------------------------------------------------- rank 0's book
enum presence { ABSENT, HERE, LEFT, LOST };

struct place {
    enum presence is;
    uint64_t life, last;     // the last number that has come in order
    double heard_s, gone_s;  // of the book's turns. gone_s: 0 while there is a connection
    unsigned asked;          // COMEs since the table was there
    struct meet_come come;
};

struct entry {
    char name[MEET_NAME_MAX];
    bool there;
    char *data;
    size_t bytes;
    bool *waits;  // by rank
    int parts;
    struct entry *next;
};

struct book {
    struct book_options o;
    char *identity;
    struct place *places;
    struct rendezvous_member *table;  // NULL: not all have come
    struct entry *buckets[BUCKETS];
    struct turn_clock turns;
    double pong_s, begun_s;  // begun_s: of the turns
    int *lost, losses;       // in the order in which they were
    int ended_by;
    char ended[MEET_TEXT_MAX];
};

struct book *book_create(const struct book_options *o) {
    struct book *b = xcalloc(1, sizeof *b);
    b->o = *o;
    b->turns = (struct turn_clock){.lost_s = o->silent_s, .pause_s = PAUSE_S};
    b->o.identity = b->identity = xstrdup(o->identity);  // ranks say COME again when rank 0 has long gone on
    b->places = xcalloc((size_t)o->size, sizeof *b->places);
    b->lost = xcalloc((size_t)o->size, sizeof *b->lost);
    return b;
}

static void say(struct book *b, int rank, struct meet_message m, const void *data, size_t bytes) {
    m.bytes = bytes;
    b->o.say(b->o.ctx, rank, b->places[rank].life, &m, data);
}

static void say_end(struct book *b, int rank) {
    say(b, rank, message(MEET_ENDED, b->ended_by, 0), b->ended, strlen(b->ended));
}

static void say_loss(struct book *b, int rank, int which) {
    say(b, rank, message(MEET_LOST, b->lost[which], 0), NULL, 0);
}

static void end(struct book *b, int rank, const char *why) {
    if (*b->ended) return;
    snprintf(b->ended, sizeof b->ended, "%s", why);
    b->ended_by = rank;
    for (int i = 0; i < b->o.size; i++)
        if (b->places[i].is == HERE) say_end(b, i);
}

static int present(const struct book *b) {
    int count = 0;
    for (int i = 0; i < b->o.size; i++) count += b->places[i].is != ABSENT;
    return count;
}

// "ranks 1, 3-5, 9 and 12 more"
static void absent(const struct book *b, char *text, size_t size) {
    int ranges = 0, more = 0, absent = 0;
    size_t at = 0;
    for (int i = 0, to; i < b->o.size; i = to + 1) {
        for (to = i; to + 1 < b->o.size && (b->places[to + 1].is == ABSENT) == (b->places[i].is == ABSENT);)
            to++;
        if (b->places[i].is != ABSENT) continue;
        absent += to + 1 - i;
        if (ranges++ >= NAMED_MAX)
            more += to + 1 - i;
        else
            at += (size_t)snprintf(text + at, size - at, to > i ? "%s%d-%d" : "%s%d", at ? ", " : "", i, to);
    }
    if (more) snprintf(text + at, size - at, " and %d more", more);
    char *list = xstrdup(text);
    snprintf(text, size, absent == 1 ? "rank %s" : "ranks %s", list);
    free(list);
}

static void say_table(struct book *b, int rank) {
    say(b, rank, message(MEET_ALL_HERE, rank, 0), b->table, (size_t)b->o.size * sizeof *b->table);
}

// Machines are numbered in the order of the first rank on each. Where a name of rank 0's means loopback on its own machine,
// the address by which others have found it is the one to tell.
static void begin(struct book *b) {
    int machines = 0;
    const char *reach = NULL;
    b->table = xcalloc((size_t)b->o.size, sizeof *b->table);
    for (int i = 0; i < b->o.size; i++) {
        struct rendezvous_member *m = &b->table[i];
        *m = b->places[i].come.member;
        m->machine = -1;
        m->local_rank = 0;
        if (b->places[i].is == ABSENT) {
            b->lost[b->losses++] = i;
            continue;
        }
        for (int k = i - 1; k >= 0 && m->machine < 0; k--)
            if (b->places[k].come.machine == b->places[i].come.machine) {
                m->machine = b->table[k].machine;
                m->local_rank = b->table[k].local_rank + 1;
            }
        if (m->machine < 0) m->machine = machines++;
        if (m->machine && !reach) reach = b->places[i].come.reach;
    }
    for (int i = 0; i < b->o.size && reach; i++)
        if (!b->table[i].machine && address_is_loopback(b->table[i].address))
            snprintf(b->table[i].address, sizeof b->table[i].address, "%s", reach);
    for (int i = 0; i < b->o.size; i++)
        if (b->places[i].is != ABSENT) say_table(b, i);
}

static void refuse(struct book *b, const struct meet_message *m, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static void refuse(struct book *b, const struct meet_message *m, const char *fmt, ...) {
    char why[MEET_TEXT_MAX];
    struct meet_message no = message(MEET_REFUSED, m->rank, m->life);
    va_list args;
    va_start(args, fmt);
    vsnprintf(why, sizeof why, fmt, args);
    va_end(args);
    no.bytes = strlen(why);
    b->o.say(b->o.ctx, m->rank, m->life, &no, why);
}

// How that rank's job is another one than rank 0's, malloc'd; NULL: it is the same.
static char *differs(const struct book *b, int rank, const char *host, const char *text) {
    if (!strcmp(b->o.identity, text)) return NULL;
    char *name = xasprintf("rank %d on %s", rank, host);
    char *words = b->o.differs ? b->o.differs(name, text, "rank 0", b->o.identity)
                               : xasprintf("%s is of another job than rank 0", name);
    free(name);
    return words;
}

static void come(struct book *b, const struct meet_message *m, const void *data, double now_s) {
    struct meet_come c;
    if (m->bytes < sizeof c) return;
    memcpy(&c, data, sizeof c);
    c.member.host[sizeof c.member.host - 1] = c.member.address[sizeof c.member.address - 1] =
        c.reach[sizeof c.reach - 1] = 0;
    if (m->size != b->o.size || m->rank < 0 || m->rank >= b->o.size) {
        char why[MEET_TEXT_MAX];
        snprintf(
            why, sizeof why,
            "rank %d of %s was told that there are %d ranks, rank 0 at %s that there are %d: start all with the "
            "same number",
            m->rank, c.member.host, m->size, b->o.place, b->o.size);
        refuse(b, m, "%s", why);
        if (!b->table) end(b, 0, why);
        return;
    }
    struct place *p = &b->places[m->rank];
    bool again = p->is != ABSENT && p->life == m->life;
    if (!again && (b->table || p->is == HERE)) {
        if (b->table && p->is == ABSENT)
            refuse(b, m, "rank %d has come to %s too late: the job has begun without it", m->rank,
                   b->o.place);
        else
            refuse(b, m,
                   "rank %d has come to %s twice: process %d of %s is there, process %d of %s came later; %s",
                   m->rank, b->o.place, p->come.member.pid, p->come.member.host, c.member.pid, c.member.host,
                   b->table ? "give another job another port" : "give each process a rank of its own");
        return;
    }
    char *text = copy((const char *)data + sizeof c, m->bytes - sizeof c),
         *other = differs(b, m->rank, c.member.host, text);
    free(text);
    if (other) {
        refuse(b, m, "%s", other);
        end(b, m->rank, other);
        free(other);
        return;
    }
    if (!again) *p = (struct place){.is = HERE, .life = m->life, .come = c};
    p->heard_s = turn_clock_at(&b->turns, now_s);
    p->gone_s = 0;
    char missing[MEET_TEXT_MAX] = "";
    absent(b, missing, sizeof missing);
    if (*b->ended)
        say_end(b, m->rank);
    else if (b->table) {
        // All tables together may take longer than until the next COME: the pause doubles.
        p->asked++;
        if (!(p->asked & (p->asked - 1))) say_table(b, m->rank);
    } else if (strcmp(missing, "ranks ") != 0) {
        struct meet_message waits = message(MEET_WAITING, m->rank, 0);
        waits.number = (uint64_t)(b->o.size - present(b));
        say(b, m->rank, waits, missing, strlen(missing));
    } else
        begin(b);
}

static struct entry *entry_of(struct book *b, const char *name) {
    struct entry **at = &b->buckets[XXH64(name, strlen(name), 0) % BUCKETS];
    while (*at && strcmp((*at)->name, name) != 0) at = &(*at)->next;
    if (!*at) {
        *at = xcalloc(1, sizeof **at);
        snprintf((*at)->name, sizeof(*at)->name, "%s", name);
        (*at)->waits = xcalloc((size_t)b->o.size, sizeof *(*at)->waits);
    }
    return *at;
}

static void say_entry(struct book *b, int rank, const struct entry *e) {
    struct meet_message m = message(MEET_GOT, rank, 0);
    snprintf(m.name, sizeof m.name, "%s", e->name);
    say(b, rank, m, e->data, e->bytes);
}

static void is_there(struct book *b, struct entry *e) {
    e->there = true;
    for (int i = 0; i < b->o.size; i++) {
        if (e->waits[i]) say_entry(b, i, e);
        e->waits[i] = false;
    }
}

static void put(struct book *b, const struct meet_message *m, const void *data) {
    struct entry *e = entry_of(b, m->name);
    free(e->data);
    e->data = copy(data, m->bytes);
    e->bytes = m->bytes;
    is_there(b, e);
}

// Parts of round k are named "#k". Everybody has round k-1 when it takes part in round k.
static void put_part(struct book *b, const struct meet_message *m, const void *data) {
    struct entry *e = entry_of(b, m->name);
    size_t size = (size_t)b->o.size;
    char before[MEET_NAME_MAX];
    if (e->there) return;
    if (!e->data) {
        e->data = xcalloc(size, m->bytes + 1);
        e->bytes = size * m->bytes;
    }
    if (e->bytes != size * m->bytes) {
        char why[MEET_TEXT_MAX];
        snprintf(why, sizeof why, "rank %d hands over %zu bytes in round %s, others %zu", m->rank,
                 (size_t)m->bytes, m->name, e->bytes / size);
        end(b, m->rank, why);
        return;
    }
    if (m->bytes) memcpy(e->data + (size_t)m->rank * m->bytes, data, m->bytes);
    if (++e->parts < b->o.size) return;  // what is numbered comes once, and a rank's rounds follow each other
    is_there(b, e);
    snprintf(before, sizeof before, "#%ld", strtol(m->name + 1, NULL, 10) - 1);
    struct entry *old = entry_of(b, before);
    free(old->data);
    old->data = NULL;
    old->there = false;
}

static void pong(struct book *b, int rank) {
    struct meet_message m = message(MEET_PONG, rank, 0);
    m.number = b->places[rank].last;
    say(b, rank, m, NULL, 0);
}

static void numbered(struct book *b, const struct meet_message *m, const void *data) {
    struct place *p = &b->places[m->rank];
    if (m->number == p->last + 1) {
        p->last++;
        if (m->kind == MEET_PUT) put(b, m, data);
        if (m->kind == MEET_PART) put_part(b, m, data);
        if (m->kind == MEET_BYE) p->is = LEFT;
        if (m->kind == MEET_ABORT) {
            char *why = copy(data, m->bytes);
            end(b, m->rank, why);
            free(why);
        }
    }
    pong(b, m->rank);
}

void book_hear(struct book *b, const struct meet_message *m, const void *data, double now_s) {
    if (m->kind == MEET_COME) {
        come(b, m, data, now_s);
        return;
    }
    if (m->rank < 0 || m->rank >= b->o.size || m->kind > MEET_BYE) return;
    struct place *p = &b->places[m->rank];
    if (p->is == ABSENT || p->life != m->life) return;
    p->heard_s = turn_clock_at(&b->turns, now_s);
    p->gone_s = 0;
    if (m->kind == MEET_GET) {
        struct entry *e = entry_of(b, m->name);
        if (e->there)
            say_entry(b, m->rank, e);
        else
            e->waits[m->rank] = true;
    } else if (m->kind == MEET_PING) {
        if (m->number < (uint64_t)b->losses) say_loss(b, m->rank, (int)m->number);
        if (*b->ended) say_end(b, m->rank);
    } else
        numbered(b, m, data);
}

void book_unreachable(struct book *b, int rank, uint64_t life, double now_s) {
    if (rank < 0 || rank >= b->o.size) return;  // a stranger's number, who was refused
    struct place *p = &b->places[rank];
    if (p->is == HERE && p->life == life && !p->gone_s) p->gone_s = turn_clock_at(&b->turns, now_s);
}

void book_tick(struct book *b, double now_s) {
    double turn_s = turn_clock_turn(&b->turns, now_s);
    if (!b->begun_s) b->begun_s = turn_s;
    if (!b->table && b->o.least && turn_s - b->begun_s > b->o.silent_s && present(b) >= b->o.least) begin(b);
    bool says = due(&b->pong_s, AGAIN_S, now_s);
    for (int i = 0; i < b->o.size; i++) {
        struct place *p = &b->places[i];
        if (p->is == HERE && says) pong(b, i);
        bool gone = p->gone_s && turn_s - p->gone_s > GONE_S;
        if (p->is != HERE || (!gone && turn_s - p->heard_s <= b->o.silent_s)) continue;
        p->is = b->table ? LOST : ABSENT;
        if (!b->table) continue;
        b->lost[b->losses++] = i;
        for (int k = 0; k < b->o.size; k++)
            if (b->places[k].is == HERE) say_loss(b, k, b->losses - 1);
    }
}

bool book_over(const struct book *b) {
    for (int i = 0; i < b->o.size; i++)
        if (b->places[i].is == HERE) return false;
    return true;
}

int book_lost(const struct book *b) { return b->losses ? b->lost[0] : -1; }

void book_destroy(struct book **book) {
    struct book *b = *book;
    if (!b) return;
    for (int i = 0; i < BUCKETS; i++)
        for (struct entry *e = b->buckets[i], *next; e; e = next) {
            next = e->next;
            free(e->data);
            free(e->waits);
            free(e);
        }
    free(b->identity);
    free(b->places);
    free(b->table);
    free(b->lost);
    free(b);
    *book = NULL;
}

// ---------------------------------------------------------------- a rank's seat
struct seat_put {
    struct meet_message m;
    void *data;
    bool said;
    struct seat_put *next;
};

void seat_open(struct seat *s, const struct meet_come *c, const char *identity) {
    s->first_lost = -1;
    s->turns = (struct turn_clock){.lost_s = s->silent_s, .pause_s = PAUSE_S};
    s->lost = xcalloc((size_t)s->size, sizeof *s->lost);
    s->come_bytes = sizeof *c + strlen(identity);
    s->come = xcalloc(1, s->come_bytes + 1);
    memcpy(s->come, c, sizeof *c);
    memcpy((char *)s->come + sizeof *c, identity, strlen(identity));
}

void seat_end(struct seat *s, const char *why) {
    if (!*s->ended) snprintf(s->ended, sizeof s->ended, "%s", why);
}

static void lost(struct seat *s, int rank) {
    if (rank < 0 || rank >= s->size || s->lost[rank]) return;
    s->lost[rank] = true;
    s->losses++;
    if (s->first_lost < 0) s->first_lost = rank;
    char *why = xasprintf("rank 0 at %s has given this rank up: it did not hear of it for %g s", s->place,
                          s->silent_s);
    if (rank == s->rank) seat_end(s, why);
    free(why);
}

static void heard(struct seat *s, uint64_t number, double now_s) {
    while (s->puts && s->puts->m.number <= number) {
        struct seat_put *p = s->puts;
        s->puts = p->next;
        s->progress_s = now_s;
        free(p->data);
        free(p);
    }
    if (number > s->acknowledged) s->acknowledged = number;
}

void seat_hear(struct seat *s, const struct meet_message *m, const void *data, double now_s) {
    s->heard = true;
    s->heard_s = turn_clock_at(&s->turns, now_s);
    s->gone_s = 0;
    char *text = m->kind == MEET_GOT || m->kind == MEET_ALL_HERE ? NULL : copy(data, m->bytes);
    if (m->kind == MEET_WAITING) snprintf(s->waiting, sizeof s->waiting, "%s", text);
    // One that comes and goes again and again is no progress.
    if (m->kind == MEET_WAITING && (!s->missing || m->number < s->missing)) {
        s->missing = m->number;
        s->came_s = now_s;
    }
    if (m->kind == MEET_REFUSED || m->kind == MEET_ENDED) seat_end(s, text);
    if (m->kind == MEET_PONG) heard(s, m->number, now_s);
    if (m->kind == MEET_LOST) lost(s, m->rank);
    if (m->kind == MEET_ALL_HERE && !s->members && m->bytes == (size_t)s->size * sizeof *s->members) {
        s->members = copy(data, m->bytes);
        for (int i = 0; i < s->size; i++) {
            struct rendezvous_member *it = &s->members[i];
            it->host[sizeof it->host - 1] = it->address[sizeof it->address - 1] = 0;
            if (it->machine < 0) lost(s, i);  // from the start, as the book counts it: no wait ends by it
        }
    }
    for (struct seat_want *w = s->wants; w && m->kind == MEET_GOT; w = w->next)
        if (!w->data && !strcmp(w->name, m->name)) {
            w->data = copy(data, m->bytes);
            w->bytes = m->bytes;
        }
    free(text);
}

void seat_unreachable(struct seat *s, double now_s) {
    if (!s->gone_s) s->gone_s = turn_clock_at(&s->turns, now_s);
}

static void say_seat(struct seat *s, struct meet_message m, const void *data) {
    m.size = s->size;
    s->say(s->ctx, s->rank, s->life, &m, data);
}

// Ends a seat whose book is not heard any more.
static void miss(struct seat *s, double turn_s) {
    bool gone = s->gone_s && turn_s - s->gone_s > GONE_S;
    if (!gone && (!s->heard || turn_s - s->heard_s <= s->silent_s)) return;
    char *why = gone ? xasprintf("rank 0 at %s has gone", s->place)
                     : xasprintf("rank 0 at %s has not been heard for %g s", s->place, s->silent_s);
    seat_end(s, why);
    free(why);
}

void seat_tick(struct seat *s, double now_s) {
    miss(s, turn_clock_turn(&s->turns, now_s));
    struct meet_message m = message(MEET_COME, s->rank, s->life);
    m.bytes = s->come_bytes;
    if (!s->members && !*s->ended && due(&s->come_s, AGAIN_S, now_s)) say_seat(s, m, s->come);
    if (!s->members) return;
    m = message(MEET_PING, s->rank, s->life);
    m.number = (uint64_t)s->losses;
    if (due(&s->ping_s, AGAIN_S, now_s)) say_seat(s, m, NULL);
    bool again = s->puts && s->puts->said && now_s - s->progress_s > STUCK_S;
    int under_way = 0;
    for (struct seat_put *p = s->puts; p && under_way++ < WINDOW; p = p->next) {
        if (p->said && !again) continue;
        p->said = true;
        s->progress_s = now_s;
        say_seat(s, p->m, p->data);
    }
    for (struct seat_want *w = s->wants; w; w = w->next) {
        m = message(MEET_GET, s->rank, s->life);
        memcpy(m.name, w->name, sizeof m.name);
        if (!w->data && due(&w->said_s, STUCK_S, now_s)) say_seat(s, m, NULL);
    }
}

void seat_put(struct seat *s, enum meet_kind kind, const char *name, const void *data, size_t bytes) {
    struct seat_put *p = xcalloc(1, sizeof *p), **at = &s->puts;
    p->m = message(kind, s->rank, s->life);
    p->m.number = ++s->said;
    p->m.bytes = bytes;
    snprintf(p->m.name, sizeof p->m.name, "%s", name);
    p->data = copy(data, bytes);
    while (*at) at = &(*at)->next;
    *at = p;
}

void seat_want(struct seat *s, struct seat_want *w) {
    w->next = s->wants;
    s->wants = w;
}

void seat_unwant(struct seat *s, struct seat_want *w) {
    struct seat_want **at = &s->wants;
    while (*at != w) at = &(*at)->next;
    *at = w->next;
}

void seat_close(struct seat *s) {
    heard(s, UINT64_MAX, 0);
    for (struct seat_want *w = s->wants, *next; w; w = next) {
        next = w->next;
        if (!w->looks) continue;
        free(w->data);
        free(w);
    }
    free(s->come);
    free(s->members);
    free(s->lost);
}
