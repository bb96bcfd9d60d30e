#include "shared/fabric/book.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "shared/core/error.h"
#include "shared/fabric/address.h"
#include "shared/time/turn_clock.h"

#define NAMED_MAX 8    // ranks that a message names
#define LOOK_S    0.5  // between two looks at who is silent

// ---------------------------------------------------------------- rank 0's book
enum presence { ABSENT, HERE, LEFT, LOST };

struct place {
    enum presence is;
    uint64_t life, last;     // the last number that has come in order
    double heard_s, gone_s;  // of the book's turns. gone_s: 0 while there is a connection
    struct meet_come come;
    char *coming;  // the beginning of a value that comes in pieces
    size_t came;
};

struct entry {
    struct meet_named named;
    uint64_t number;  // of all values that have been put; 0: it is not there
    char *data;
    size_t bytes;
    uint8_t *waits;  // a bit for each rank that wants it; NULL: none does
    int parts;
};

struct book {
    struct book_options o;
    char *identity;
    struct place *places;
    bool begun;  // all have come, or as many as do
    struct meet_names names;
    uint64_t values, gathers;  // that have been put; that all have taken part in
    struct turn_clock turns;
    double look_s, asks_s;  // asks_s: until then all are asked at each look
    double begun_s;         // of the turns
    int absent, here;       // ranks that have not come; that are there
    char waiting[MEET_TEXT_MAX];
    double waiting_s;   // when that was written; 0: it is no more true
    int *lost, losses;  // in the order in which they were
    int said_losses;    // that all have been told of
    int ended_by;
    char ended[MEET_TEXT_MAX];
};

struct book *book_create(const struct book_options *o) {
    struct book *b = xcalloc(1, sizeof *b);
    b->o = *o;
    b->turns = (struct turn_clock){.lost_s = o->silent_s, .pause_s = MEET_PAUSE_S};
    b->o.identity = b->identity = xstrdup(o->identity);  // ranks say COME again when rank 0 has long gone on
    b->places = xcalloc((size_t)o->size, sizeof *b->places);
    b->lost = xcalloc((size_t)o->size, sizeof *b->lost);
    b->absent = o->size;
    return b;
}

static void say(struct book *b, int rank, struct meet_message m, const void *data, size_t bytes) {
    m.bytes = bytes;
    b->o.say(b->o.ctx, rank, b->places[rank].life, &m, data);
}

static void say_end(struct book *b, int rank) {
    say(b, rank, meet_message(MEET_ENDED, b->ended_by, 0), b->ended, strlen(b->ended));
}

static void say_losses(struct book *b, int rank, int from) {
    struct meet_message m = meet_message(MEET_LOST, rank, 0);
    m.number = (uint64_t)from;
    say(b, rank, m, b->lost + from, (size_t)(b->losses - from) * sizeof *b->lost);
}

static void end(struct book *b, int rank, const char *why) {
    if (*b->ended) return;
    snprintf(b->ended, sizeof b->ended, "%s", why);
    b->ended_by = rank;
    for (int i = 0; i < b->o.size; i++)
        if (b->places[i].is == HERE) say_end(b, i);
}

// "ranks 1, 3-5, 9 and 12 more"
static void write_absent(const struct book *b, char *text, size_t size) {
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

// Of many that come at once not each has the text written anew.
static void say_waiting(struct book *b, int rank, double now_s) {
    struct meet_message m = meet_message(MEET_WAITING, rank, 0);
    if (!b->waiting_s || now_s - b->waiting_s >= MEET_AGAIN_S) {
        write_absent(b, b->waiting, sizeof b->waiting);
        b->waiting_s = now_s;
    }
    m.number = (uint64_t)b->absent;
    say(b, rank, m, b->waiting, strlen(b->waiting));
}

static void set_place(struct book *b, int rank, enum presence is) {
    struct place *p = &b->places[rank];
    b->here += (is == HERE) - (p->is == HERE);
    b->absent += (is == ABSENT) - (p->is == ABSENT);
    p->is = is;
}

static struct entry *entry_of(struct book *b, const char *name) {
    struct entry *e = (struct entry *)meet_names_find(&b->names, name, NULL);
    if (e) return e;
    e = xcalloc(1, sizeof *e);
    snprintf(e->named.name, sizeof e->named.name, "%s", name);
    meet_names_add(&b->names, &e->named);
    return e;
}

static void entry_free(struct entry *e) {
    free(e->data);
    free(e->waits);
    free(e);
}

static void drop(struct book *b, const char *name) {
    struct entry *e = (struct entry *)meet_names_find(&b->names, name, NULL);
    if (!e) return;
    meet_names_remove(&b->names, &e->named);
    entry_free(e);
}

static void say_piece(struct book *b, int rank, const struct entry *e, uint64_t at) {
    struct meet_message m = meet_message(MEET_GOT, rank, 0);
    size_t left = e->bytes - at;
    snprintf(m.name, sizeof m.name, "%s", e->named.name);
    m.number = e->number;
    m.at = at;
    m.total = e->bytes;
    say(b, rank, m, e->data + at, left < MEET_PIECE ? left : MEET_PIECE);
}

static void is_there(struct book *b, struct entry *e) {
    e->number = ++b->values;
    for (int i = 0; i < b->o.size && e->waits; i++)
        if (e->waits[i / 8] >> i % 8 & 1 && b->places[i].is == HERE) say_piece(b, i, e, 0);
    free(e->waits);
    e->waits = NULL;
}

// data becomes the entry's.
static void put(struct book *b, const char *name, char *data, size_t bytes) {
    struct entry *e = entry_of(b, name);
    free(e->data);
    e->data = data;
    e->bytes = bytes;
    is_there(b, e);
}

// Machines are numbered in the order of the first rank on each. Where a name of rank 0's means loopback on its own machine,
// the address by which others have found it is the one to tell.
static void begin(struct book *b) {
    int machines = 0;
    const char *reach = NULL;
    size_t bytes;
    struct rendezvous_member *table = xcalloc((size_t)b->o.size, sizeof *table);
    for (int i = 0; i < b->o.size; i++) {
        struct rendezvous_member *m = &table[i];
        *m = b->places[i].come.member;
        m->machine = -1;
        m->local_rank = 0;
        if (b->places[i].is == ABSENT) {
            b->lost[b->losses++] = i;
            continue;
        }
        for (int k = i - 1; k >= 0 && m->machine < 0; k--)
            if (b->places[k].come.machine == b->places[i].come.machine) {
                m->machine = table[k].machine;
                m->local_rank = table[k].local_rank + 1;
            }
        if (m->machine < 0) m->machine = machines++;
        if (m->machine && !reach) reach = b->places[i].come.reach;
    }
    for (int i = 0; i < b->o.size && reach; i++)
        if (!table[i].machine && address_is_loopback(table[i].address))
            snprintf(table[i].address, sizeof table[i].address, "%s", reach);
    b->begun = true;
    b->said_losses = b->losses;  // the table says so
    char *text = meet_table_write(table, b->o.size, &bytes);
    put(b, MEET_TABLE, text, bytes);
    free(table);
}

static void refuse(struct book *b, const struct meet_message *m, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static void refuse(struct book *b, const struct meet_message *m, const char *fmt, ...) {
    char why[MEET_TEXT_MAX];
    struct meet_message no = meet_message(MEET_REFUSED, m->rank, m->life);
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

static void pong(struct book *b, int rank) {
    struct meet_message m = meet_message(MEET_PONG, rank, 0);
    m.number = b->places[rank].last;
    say(b, rank, m, NULL, 0);
}

// To one that shows that it is there, and knows of so many losses.
static void answer(struct book *b, int rank, int losses, double now_s) {
    if (b->begun)
        pong(b, rank);
    else
        say_waiting(b, rank, now_s);
    if (losses < b->losses) say_losses(b, rank, losses);
    if (*b->ended) say_end(b, rank);
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
        if (!b->begun) end(b, 0, why);
        return;
    }
    struct place *p = &b->places[m->rank];
    bool again = p->is != ABSENT && p->life == m->life;
    if (!again && (b->begun || p->is == HERE)) {
        if (b->begun && p->is == ABSENT)
            refuse(b, m, "rank %d has come to %s too late: the job has begun without it", m->rank,
                   b->o.place);
        else
            refuse(b, m,
                   "rank %d has come to %s twice: process %d of %s is there, process %d of %s came later; %s",
                   m->rank, b->o.place, p->come.member.pid, p->come.member.host, c.member.pid, c.member.host,
                   b->begun ? "give another job another port" : "give each process a rank of its own");
        return;
    }
    char *text = meet_copy((const char *)data + sizeof c, m->bytes - sizeof c),
         *other = differs(b, m->rank, c.member.host, text);
    free(text);
    if (other) {
        refuse(b, m, "%s", other);
        end(b, m->rank, other);
        free(other);
        return;
    }
    if (!again) {
        set_place(b, m->rank, HERE);
        free(p->coming);
        *p = (struct place){.is = HERE, .life = m->life, .come = c};
        b->waiting_s = 0;
    }
    p->heard_s = turn_clock_at(&b->turns, now_s);
    p->gone_s = 0;
    if (!b->begun && !b->absent && !*b->ended) begin(b);
    answer(b, m->rank, b->losses, now_s);
}

// Whether it is a gather that all have been through.
static bool is_past(const struct book *b, const char *name) {
    return *name == '#' && strcmp(name, MEET_TABLE) != 0 && strtoull(name + 1, NULL, 10) < b->gathers;
}

// A part of gather k, named "#k". Everybody has what gather k-1 was when it takes part in gather k.
static void put_part(struct book *b, int rank, const char *name, const char *data, size_t bytes) {
    if (*name != '#' || is_past(b, name)) return;
    struct entry *e = entry_of(b, name);
    size_t size = (size_t)b->o.size, all = e->data ? e->bytes / size : bytes;
    char why[MEET_TEXT_MAX] = "", before[MEET_NAME_MAX];
    if (bytes > MEET_DATA_MAX / size)
        snprintf(why, sizeof why, "rank %d hands over %zu bytes in round %s: %zu of each rank are the most",
                 rank, bytes, name, MEET_DATA_MAX / size);
    else if (bytes != all)
        snprintf(why, sizeof why, "rank %d hands over %zu bytes in round %s, others %zu", rank, bytes, name,
                 all);
    if (*why) end(b, rank, why);
    if (*why || e->number) return;
    if (!e->data) {
        e->data = xcalloc(size, bytes + 1);
        e->bytes = size * bytes;
    }
    if (bytes) memcpy(e->data + (size_t)rank * bytes, data, bytes);
    if (++e->parts < b->o.size) return;  // what is numbered comes once, and a rank's rounds follow each other
    is_there(b, e);
    unsigned long long k = strtoull(name + 1, NULL, 10);
    if (k > b->gathers) b->gathers = k;
    snprintf(before, sizeof before, "#%llu", k - 1);
    if (k > 1) drop(b, before);
}

static void get(struct book *b, const struct meet_message *m) {
    if (is_past(b, m->name)) return;
    struct entry *e = entry_of(b, m->name);
    bool same = m->number == e->number && m->at < e->bytes;
    if (e->number) {
        say_piece(b, m->rank, e, same ? m->at : 0);
        return;
    }
    if (!e->waits) e->waits = xcalloc((size_t)b->o.size / 8 + 1, 1);
    e->waits[m->rank / 8] |= (uint8_t)(1 << m->rank % 8);
}

// A value has come as a whole: what its message asks for.
static void act(struct book *b, const struct meet_message *m, struct place *p) {
    char *data = p->coming ? p->coming : meet_copy("", 0);
    size_t bytes = p->came;
    p->coming = NULL;
    p->came = 0;
    if (m->kind == MEET_PUT) {
        put(b, m->name, data, bytes);
        return;
    }
    if (m->kind == MEET_PART) put_part(b, m->rank, m->name, data, bytes);
    if (m->kind == MEET_DROP) drop(b, m->name);
    if (m->kind == MEET_BYE) set_place(b, m->rank, LEFT);
    if (m->kind == MEET_ABORT) end(b, m->rank, data);
    free(data);
}

static void numbered(struct book *b, const struct meet_message *m, const void *data) {
    struct place *p = &b->places[m->rank];
    if (m->number == p->last + 1 && meet_goes_on(m, p->came)) {
        p->last++;
        p->coming = xrealloc(p->coming, p->came + m->bytes + 1);
        if (m->bytes) memcpy(p->coming + p->came, data, m->bytes);
        p->came += m->bytes;
        p->coming[p->came] = 0;
        if (p->came == m->total) act(b, m, p);
    }
    pong(b, m->rank);
}

void book_hear(struct book *b, const struct meet_message *m, const void *data, double now_s) {
    if (m->kind == MEET_COME) {
        come(b, m, data, now_s);
        return;
    }
    if (m->rank < 0 || m->rank >= b->o.size || m->kind > MEET_PING) return;
    struct place *p = &b->places[m->rank];
    if (p->is == ABSENT || p->life != m->life) return;
    p->heard_s = turn_clock_at(&b->turns, now_s);
    p->gone_s = 0;
    if (m->kind == MEET_GET)
        get(b, m);
    else if (m->kind == MEET_PING)
        answer(b, m->rank, m->number < (uint64_t)b->losses ? (int)m->number : b->losses, now_s);
    else
        numbered(b, m, data);
}

void book_unreachable(struct book *b, int rank, uint64_t life, double now_s) {
    if (rank < 0 || rank >= b->o.size) return;  // a stranger's number, who was refused
    struct place *p = &b->places[rank];
    if (p->is == HERE && p->life == life && !p->gone_s) p->gone_s = turn_clock_at(&b->turns, now_s);
}

void book_disturbed(struct book *b, double now_s) {
    b->look_s = 0;
    b->asks_s = now_s + MEET_AGAIN_S;
}

// A silent rank is asked: a connection shows that it is broken only when something is sent.
static void look_at(struct book *b, int rank, bool asks, double turn_s) {
    struct place *p = &b->places[rank];
    if (p->is != HERE) return;
    if (asks || turn_s - p->heard_s > 1.5 * MEET_AGAIN_S) pong(b, rank);
    bool gone = p->gone_s && turn_s - p->gone_s > MEET_GONE_S;
    if (!gone && turn_s - p->heard_s <= b->o.silent_s) return;
    set_place(b, rank, b->begun ? LOST : ABSENT);
    b->waiting_s = 0;
    if (b->begun) b->lost[b->losses++] = rank;
}

void book_tick(struct book *b, double now_s) {
    double turn_s = turn_clock_turn(&b->turns, now_s);
    if (!meet_due(&b->look_s, LOOK_S, now_s)) return;
    if (!b->begun_s) b->begun_s = turn_s;
    bool enough = b->o.least && b->o.size - b->absent >= b->o.least;
    if (!b->begun && enough && turn_s - b->begun_s > b->o.silent_s) begin(b);
    for (int i = 0; i < b->o.size; i++) look_at(b, i, now_s < b->asks_s, turn_s);
    for (int i = 0; i < b->o.size && b->said_losses < b->losses; i++)
        if (b->places[i].is == HERE) say_losses(b, i, b->said_losses);
    b->said_losses = b->losses;
}

bool book_over(const struct book *b) { return b->here == 0; }

int book_lost(const struct book *b) { return b->losses ? b->lost[0] : -1; }

size_t book_names(const struct book *b) { return b->names.count; }

void book_destroy(struct book **book) {
    struct book *b = *book;
    if (!b) return;
    for (size_t i = 0; i < b->names.room; i++)
        for (struct meet_named *e = b->names.rows[i], *next; e; e = next) {
            next = e->next;
            entry_free((struct entry *)e);
        }
    free(b->names.rows);
    for (int i = 0; i < b->o.size; i++) free(b->places[i].coming);
    free(b->identity);
    free(b->places);
    free(b->lost);
    free(b);
    *book = NULL;
}
