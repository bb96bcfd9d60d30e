#include "shared/fabric/book.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "shared/core/error.h"
#include "shared/fabric/address.h"
#include "shared/fabric/post.h"
#include "shared/time/turn_clock.h"

#define NAMED_MAX 8    // ranks that a message lists by number
#define LOOK_S    0.5  // between two checks for silent members
#define LOOKS     16   // at least so many checks in silent_s
#define PASTS_MAX 64   // ended processes that are remembered per place
#define ALL_LEFT  (-1)

// ---------------------------------------------------------------- member 0's book
enum presence { ABSENT, HERE, LEFT, LOST };

// A process of a cast member for which the job has ended, and the reason. A lost process may join again with a new
// life.
struct past {
    uint64_t life;
    bool lost;
    char *why;
};

// A member's entry in the book.
struct place {
    enum presence is;
    struct past *past;
    int pasts;  // how many were ever added; the last PASTS_MAX are kept
    uint64_t life;
    uint64_t gets;  // the number of its last GET
    uint16_t sign;
    double heard_s, gone_s;  // on the book's turn clock. gone_s: 0 while the member is connected
    struct meet_come come;
};

struct entry {
    struct meet_named named;
    bool there;
    struct meet_value *value;
    uint8_t *waits;  // one bit per member that waits for the value; NULL: none waits
    int parts;
};

struct book {
    struct rendezvous_options o;
    const char *place;
    meet_say *say;
    void (*news)(void *ctx, const struct member_news *n);
    void *ctx;
    char *identity;
    struct place *places;
    int members;
    bool begun;  // all ranks have joined, or enough of them (`least`)
    struct meet_names names;
    struct post *post;
    uint64_t gathers;  // how many gathers are complete
    struct turn_clock turns;
    double look_s, asks_s;  // asks_s: until then each check asks all members
    double begun_s;         // on the turn clock
    int absent, here;       // absent: ranks that have not joined; here: ranks that are connected
    int cast_here;
    char waiting[MEET_TEXT_MAX];
    double waiting_s;   // when `waiting` was written; 0: it is out of date
    int *lost, losses;  // in the order of the losses
    int said_losses;    // how many losses all ranks have been sent
    int ended_by;       // a rank, or ALL_LEFT: all ranks have said goodbye
    char ended[MEET_TEXT_MAX];
};

static void say(void *ctx, int rank, struct meet_message *m, const void *data);

struct book *book_create(const struct rendezvous_options *o, const char *place, meet_say *speak,
                         void (*news)(void *ctx, const struct member_news *n), void *ctx) {
    struct book *b = xcalloc(1, sizeof *b);
    *b = (struct book){.o = *o, .place = place, .say = speak, .news = news, .ctx = ctx};
    b->turns = (struct turn_clock){.lost_s = o->silent_s, .pause_s = MEET_PAUSE_S};
    b->o.identity = b->identity = xstrdup(o->identity);  // ranks may send COME much later
    if (!o->first) b->o.first = "rank 0";
    if (!(o->beat_s > 0)) b->o.beat_s = MEET_AGAIN_S;
    b->members = meet_members(o->size, o->cast);
    b->places = xcalloc((size_t)b->members, sizeof *b->places);
    b->lost = xcalloc((size_t)o->size, sizeof *b->lost);
    b->absent = o->size;
    b->post = post_open(b->members, say, b);
    return b;
}

static bool is_cast(const struct book *b, int member) { return member >= b->o.size && member < b->members; }

// Reports news of a member to member 0's process. c: the member's COME. n: zeroed, except the fields that are not set
// here.
static void tell(struct book *b, enum member_news_kind kind, int member, uint64_t life,
                 const struct meet_come *c, struct member_news *n) {
    n->kind = kind;
    n->member = member;
    n->life = life;
    n->pid = c->member.pid;
    memcpy(n->host, c->member.host, sizeof n->host);
    if (b->news)
        b->news(b->ctx, n);
    else
        free(n->data);
}

static void say(void *ctx, int rank, struct meet_message *m, const void *data) {
    struct book *b = ctx;
    if (m->kind != MEET_ENDED) m->rank = rank;
    b->say(b->ctx, rank, b->places[rank].life, m, data);
}

static void put_for(struct book *b, int rank, const struct meet_message *m, struct meet_value *v) {
    v->users++;
    post_put(b->post, rank, m, v);
    post_push(b->post, rank, true);
}

static void say_end(struct book *b, int rank) {
    struct meet_message m = meet_message(MEET_ENDED, b->ended_by, 0);
    struct meet_value *v = meet_value_of(xstrdup(b->ended), strlen(b->ended));
    m.count = MEET_JOB_OVER;
    put_for(b, rank, &m, v);
    meet_value_free(v);
}

static void end(struct book *b, int rank, const char *why) {
    if (*b->ended) return;
    snprintf(b->ended, sizeof b->ended, "%s", why);
    b->ended_by = rank;
    for (int i = 0; i < b->members; i++)
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

// The text is written at most once per MEET_AGAIN_S: many ranks may join at once.
static void say_waiting(struct book *b, int rank, double now_s) {
    struct meet_message m = meet_message(MEET_WAITING, rank, 0);
    if (!b->waiting_s || now_s - b->waiting_s >= MEET_AGAIN_S) {
        write_absent(b, b->waiting, sizeof b->waiting);
        b->waiting_s = now_s;
    }
    m.count = (uint64_t)b->absent;
    m.bytes = strlen(b->waiting);
    post_say(b->post, rank, m, b->waiting);
}

static void set_place(struct book *b, int rank, enum presence is) {
    struct place *p = &b->places[rank];
    int *here = is_cast(b, rank) ? &b->cast_here : &b->here;
    *here += (is == HERE) - (p->is == HERE);
    if (!is_cast(b, rank)) b->absent += (is == ABSENT) - (p->is == ABSENT);
    p->is = is;
}

// ---------------------------------------------------------------- ended processes of the cast
static struct past *past_of(const struct place *p, uint64_t life) {
    for (int i = 0; i < p->pasts && i < PASTS_MAX; i++)
        if (p->past[i].life == life) return &p->past[i];
    return NULL;
}

static void say_past(struct book *b, int member, const struct past *x) {
    struct meet_message m = meet_message(MEET_ENDED, member, 0);
    m.count = x->lost ? MEET_LOST_ME : MEET_OUT_ME;
    m.bytes = strlen(x->why);
    b->say(b->ctx, member, x->life, &m, x->why);
}

// Ends the job for one process and frees its place. A process that was not lost is sent the reason now. A lost process
// is sent it when it speaks again, as another one may have the place by then. Takes ownership of why.
static void put_out(struct book *b, int member, uint64_t life, bool lost, char *why) {
    struct place *p = &b->places[member];
    struct past *x = past_of(p, life);
    if (!x && (p->is == ABSENT || p->life != life)) {
        free(why);
        return;
    }
    if (!x) {
        set_place(b, member, ABSENT);
        post_forget(b->post, member);
        if (p->pasts < PASTS_MAX) {
            p->past = xrealloc(p->past, (size_t)(p->pasts + 1) * sizeof *x);
            p->past[p->pasts] = (struct past){0};
        }
        x = &p->past[p->pasts++ % PASTS_MAX];
    }
    free(x->why);
    *x = (struct past){life, lost, why};
    if (!lost) say_past(b, member, x);
}

// ---------------------------------------------------------------- values by name
static struct entry *entry_of(struct book *b, const char *name) {
    struct entry *e = (struct entry *)meet_names_find(&b->names, name, NULL);
    if (e) return e;
    e = xcalloc(1, sizeof *e);
    snprintf(e->named.name, sizeof e->named.name, "%s", name);
    meet_names_add(&b->names, &e->named);
    return e;
}

static void entry_free(struct entry *e) {
    meet_value_free(e->value);
    free(e->waits);
    free(e);
}

static void drop(struct book *b, const char *name) {
    struct entry *e = (struct entry *)meet_names_find(&b->names, name, NULL);
    if (!e) return;
    meet_names_remove(&b->names, &e->named);
    entry_free(e);
}

static void hand_out(struct book *b, int rank, const struct entry *e) {
    struct meet_message m = meet_message(MEET_GOT, rank, 0);
    memcpy(m.name, e->named.name, sizeof m.name);
    m.count = b->places[rank].gets;
    put_for(b, rank, &m, e->value);
}

static void is_there(struct book *b, struct entry *e) {
    e->there = true;
    for (int i = 0; i < b->members && e->waits; i++)
        if (e->waits[i / 8] >> i % 8 & 1 && b->places[i].is == HERE) hand_out(b, i, e);
    free(e->waits);
    e->waits = NULL;
}

// Takes ownership of v.
static struct entry *put(struct book *b, const char *name, struct meet_value *v) {
    struct entry *e = entry_of(b, name);
    meet_value_free(e->value);
    e->value = v;
    is_there(b, e);
    return e;
}

// ---------------------------------------------------------------- joining
// Machines are numbered in the order of the first rank on each. If rank 0's host name resolves to loopback on its own
// machine, the table gets the address at which another machine reached rank 0.
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
    b->said_losses = b->losses;  // the table lists them already
    char *text = meet_table_write(table, b->o.size, &bytes);
    const struct entry *e = put(b, MEET_TABLE, meet_value_of(text, bytes));
    for (int i = 0; i < b->o.size; i++)
        if (b->places[i].is == HERE) hand_out(b, i, e);
    free(table);
}

// Returns how the job of `name` differs from rank 0's, malloc'd, or NULL if it is the same.
static char *differs(const struct book *b, const char *name, const char *text) {
    if (!strcmp(b->o.identity, text)) return NULL;
    return b->o.differs ? b->o.differs(name, text, b->o.first, b->o.identity)
                        : xasprintf("%s is of another job than %s", name, b->o.first);
}

// Returns whether the sender of a COME is of the cast, by the number of ranks that the sender was given.
static bool comes_to_cast(const struct meet_message *m) { return m->rank >= m->size; }

// Returns the place that a COME is for, or NULL if the sender was given other member counts.
static struct place *place_for(const struct book *b, const struct meet_message *m,
                               const struct meet_come *c) {
    bool same = m->size == b->o.size;
    for (int i = 0; i < MEET_CAST_MAX; i++) same = same && c->counts[i] == b->o.cast[i].count;
    return same && m->rank >= 0 && m->rank < b->members ? &b->places[m->rank] : NULL;
}

// "5 ranks", "4 workers, 2 servers"
static char *told(const struct book *b, int size, const int *counts) {
    char *text = size > 1 || b->members == b->o.size ? xasprintf("%d ranks", size) : xstrdup("");
    for (int i = 0; i < MEET_CAST_MAX; i++) {
        char *longer = !b->o.cast[i].count ? xstrdup(text)
                                           : xasprintf("%s%s%d %s%s", text, *text ? ", " : "", counts[i],
                                                       b->o.cast[i].word, counts[i] == 1 ? "" : "s");
        free(text);
        text = longer;
    }
    return text;
}

static void refuse(struct book *b, const struct meet_message *m, const struct meet_come *c, const char *why) {
    struct meet_message no = meet_message(MEET_REFUSED, m->rank, m->life);
    struct member_news n = {0};
    no.bytes = strlen(why);
    b->say(b->ctx, m->rank, m->life, &no, why);
    snprintf(n.why, sizeof n.why, "%s", why);
    tell(b, MEMBER_REFUSED, place_for(b, m, c) ? m->rank : -1, m->life, c, &n);
}

// Returns why the process is refused, malloc'd, or NULL if it may join. *ends: the refusal also ends the rendezvous.
static char *objection(const struct book *b, const struct meet_message *m, const struct meet_come *c,
                       const char *identity, bool *ends) {
    const struct place *p = place_for(b, m, c);
    bool cast = comes_to_cast(m);
    char name[MEET_WHO_MAX];
    *ends = !b->begun && !cast;
    if (!p) {
        struct meet_role of[MEET_CAST_MAX];
        int own[MEET_CAST_MAX];
        for (int i = 0; i < MEET_CAST_MAX; i++) {
            own[i] = b->o.cast[i].count;
            of[i] = (struct meet_role){b->o.cast[i].word, c->counts[i]};
        }
        const char *who = *meet_member_name(m->rank, m->size, of, name) ? name : "a process";
        char *its = told(b, m->size, c->counts), *ours = told(b, b->o.size, own);
        char *why = xasprintf(
            "%s of %s was told that there are %s, %s at %s that there are %s: start all with the same number",
            who, c->member.host, its, b->o.first, b->place, ours);
        free(its);
        free(ours);
        return why;
    }
    meet_member_name(m->rank, b->o.size, b->o.cast, name);
    bool again = p->is != ABSENT && p->life == m->life, taken = !again && p->is == HERE;
    if (cast)
        return taken && !b->o.anew ? xasprintf("%s is already here, process %d of %s; every one joins once",
                                               name, p->come.member.pid, p->come.member.host)
                                   : NULL;
    if (!again && b->begun && p->is == ABSENT)
        return xasprintf("%s has come to %s too late: the job has begun without it", name, b->place);
    if (!again && (b->begun || taken)) {
        *ends = false;
        return xasprintf(
            "%s has come to %s twice: process %d of %s is there, process %d of %s came later; %s", name,
            b->place, p->come.member.pid, p->come.member.host, c->member.pid, c->member.host,
            b->begun ? "give another job another port" : "give each process a rank of its own");
    }
    char *where = xasprintf("%s on %s", name, c->member.host);
    char *why = differs(b, where, identity);
    free(where);
    return why;
}

static void pong(struct book *b, int rank) {
    post_say(b->post, rank, meet_message(MEET_PONG, rank, 0), NULL);
}

// Answers a member's sign of life.
static void answer(struct book *b, int rank, double now_s) {
    if (b->begun || is_cast(b, rank))
        pong(b, rank);
    else
        say_waiting(b, rank, now_s);
}

// A new process takes the place, and replaces the process that held it, if any.
static void take_place(struct book *b, const struct meet_message *m, const struct meet_come *c) {
    struct place *p = &b->places[m->rank];
    struct member_news lost = {.word = "replaced", .why = "was started again"}, came = {0};
    const struct past *past = past_of(p, p->life);
    char name[MEET_WHO_MAX];
    meet_member_name(m->rank, b->o.size, b->o.cast, name);
    if (p->is == HERE) tell(b, MEMBER_LOST, m->rank, p->life, &p->come, &lost);
    if (is_cast(b, m->rank) && (!past || past->lost))
        put_out(b, m->rank, p->life, false,
                xasprintf("%s has been started again: this process is not needed any more", name));
    set_place(b, m->rank, HERE);
    if (p->life != m->life) post_forget(b->post, m->rank);
    *p = (struct place){.is = HERE, .past = p->past, .pasts = p->pasts, .life = m->life, .come = *c};
    b->waiting_s = 0;
    tell(b, MEMBER_CAME, m->rank, p->life, &p->come, &came);
    if (*b->ended) say_end(b, m->rank);
}

static void come(struct book *b, const struct meet_message *m, const void *data, double now_s) {
    struct meet_come c;
    if (m->bytes < sizeof c) return;
    memcpy(&c, data, sizeof c);
    c.member.host[sizeof c.member.host - 1] = c.member.address[sizeof c.member.address - 1] =
        c.reach[sizeof c.reach - 1] = 0;
    for (char *at = c.member.host; *at; at++)
        if (iscntrl((unsigned char)*at)) *at = '?';  // it is printed: no line break
    struct place *p = place_for(b, m, &c);
    const struct past *past = p ? past_of(p, m->life) : NULL;
    if (past) {
        say_past(b, m->rank, past);
        return;
    }
    bool ends = false;
    char *text = meet_copy((const char *)data + sizeof c, m->bytes - sizeof c),
         *why = objection(b, m, &c, text, &ends);
    if (why) {
        refuse(b, m, &c, why);
        if (ends) end(b, p ? m->rank : 0, why);
    } else {
        if (p->is == ABSENT || p->life != m->life) take_place(b, m, &c);
        p->heard_s = turn_clock_at(&b->turns, now_s);
        p->gone_s = 0;
        if (!b->begun && !b->absent && !*b->ended) begin(b);
        answer(b, m->rank, now_s);
    }
    free(why);
    free(text);
}

// ---------------------------------------------------------------- messages of members
// Returns whether the name is a gather that is complete.
static bool is_past(const struct book *b, const char *name) {
    return *name == '#' && strcmp(name, MEET_TABLE) != 0 && strtoull(name + 1, NULL, 10) < b->gathers;
}

// Stores rank's part of gather k, named "#k". A rank that takes part in gather k has the result of gather k-1, so that
// one is dropped.
static void put_part(struct book *b, int rank, const char *name, const char *data, size_t bytes) {
    if (*name != '#' || is_past(b, name)) return;
    struct entry *e = entry_of(b, name);
    size_t size = (size_t)b->o.size, all = e->value ? e->value->bytes / size : bytes;
    char why[MEET_TEXT_MAX] = "", before[MEET_NAME_MAX];
    if (bytes > MEET_DATA_MAX / size)
        snprintf(why, sizeof why, "rank %d hands over %zu bytes in round %s: %zu of each rank are the most",
                 rank, bytes, name, MEET_DATA_MAX / size);
    else if (bytes != all)
        snprintf(why, sizeof why, "rank %d hands over %zu bytes in round %s, others %zu", rank, bytes, name,
                 all);
    if (*why) end(b, rank, why);
    if (*why || e->there) return;
    if (!e->value) e->value = meet_value_of(xcalloc(size, bytes + 1), size * bytes);
    if (bytes) memcpy(e->value->data + (size_t)rank * bytes, data, bytes);
    if (++e->parts < b->o.size) return;  // numbered messages arrive once, in order
    is_there(b, e);
    unsigned long long k = strtoull(name + 1, NULL, 10);
    if (k > b->gathers) b->gathers = k;
    snprintf(before, sizeof before, "#%llu", k - 1);
    if (k > 1) drop(b, before);
}

static void say_lives(struct book *b, int member) {
    size_t bytes = (size_t)b->o.size * sizeof b->places->sign;
    uint16_t *signs = xcalloc(1, bytes);
    struct entry e = {.named.name = MEET_LIVES, .value = meet_value_of(signs, bytes)};
    for (int i = 0; i < b->o.size; i++) signs[i] = b->places[i].sign;
    hand_out(b, member, &e);
    meet_value_free(e.value);
}

static void get(struct book *b, const struct meet_message *m) {
    b->places[m->rank].gets = m->count;
    if (!strcmp(m->name, MEET_LIVES)) {
        say_lives(b, m->rank);
        return;
    }
    if (is_past(b, m->name)) return;
    struct entry *e = entry_of(b, m->name);
    if (e->there) {
        hand_out(b, m->rank, e);
        return;
    }
    if (!e->waits) e->waits = xcalloc((size_t)b->members / 8 + 1, 1);
    e->waits[m->rank / 8] |= (uint8_t)(1 << m->rank % 8);
}

// Carries out a message that has arrived whole. Takes ownership of v.
static void act(struct book *b, const struct meet_message *m, struct place *p, struct meet_value *v) {
    if (m->kind == MEET_PUT) {
        put(b, m->name, v);
        return;
    }
    if (m->kind == MEET_GET) get(b, m);
    bool rank = m->rank < b->o.size;
    int member;
    unsigned long long life;
    struct member_news n = {0};
    if (m->kind == MEET_PART && rank) put_part(b, m->rank, m->name, v->data, v->bytes);
    if (m->kind == MEET_DROP) drop(b, m->name);
    if (m->kind == MEET_OUT && m->rank == 0 && sscanf(m->name, "%d %llx", &member, &life) == 2 &&
        is_cast(b, member))
        put_out(b, member, life, false, xstrdup(v->data));
    if (m->kind == MEET_ABORT && rank) end(b, m->rank, v->data);
    if (m->kind == MEET_BYE && p->is != LEFT) {
        set_place(b, m->rank, LEFT);
        tell(b, MEMBER_LEFT, m->rank, p->life, &p->come, &n);
        if (book_over(b) && b->cast_here) end(b, ALL_LEFT, "the job has ended");
    }
    if (m->kind == MEET_SAY && p->is == HERE) {
        memcpy(n.word, m->name, sizeof n.word);
        n.data = v->data;
        n.bytes = v->bytes;
        v->data = NULL;
        tell(b, MEMBER_SAID, m->rank, p->life, &p->come, &n);
    }
    meet_value_free(v);
}

void book_hear(struct book *b, const struct meet_message *m, const void *data, double now_s) {
    if (m->kind == MEET_COME) {
        come(b, m, data, now_s);
        return;
    }
    if (m->rank < 0 || m->rank >= b->members || m->kind > MEET_PING) return;
    struct place *p = &b->places[m->rank];
    if (p->is == ABSENT || p->is == LOST || p->life != m->life) {
        const struct past *past = past_of(p, m->life);
        if (past) say_past(b, m->rank, past);
        return;
    }
    p->heard_s = turn_clock_at(&b->turns, now_s);
    p->gone_s = 0;
    struct meet_value *v = post_hear(b->post, m->rank, m, data, now_s);
    if (v) act(b, m, p, v);
    if (m->kind == MEET_PING) {
        p->sign = meet_sign(p->sign, (int)m->count);
        answer(b, m->rank, now_s);
    }
    post_push(b->post, m->rank, true);
}

void book_unreachable(struct book *b, int rank, uint64_t life, double now_s) {
    if (rank < 0 || rank >= b->members) return;  // the member number of a refused process
    struct place *p = &b->places[rank];
    if (p->is == HERE && p->life == life && !p->gone_s) p->gone_s = turn_clock_at(&b->turns, now_s);
}

void book_disturbed(struct book *b, double now_s) {
    b->look_s = 0;
    b->asks_s = now_s + MEET_AGAIN_S;
}

static void lose(struct book *b, int member, bool gone, double turn_s) {
    struct place *p = &b->places[member];
    struct member_news n = {.silent_s = turn_s - p->heard_s};
    char stood[TURN_CLOCK_WORDS];
    snprintf(n.word, sizeof n.word, gone ? "gone" : "silent");
    if (gone)
        snprintf(n.why, sizeof n.why, "has gone: its connection has closed");
    else
        snprintf(n.why, sizeof n.why, "was silent for %.1f s%s", n.silent_s,
                 turn_clock_words(&b->turns, p->heard_s, stood));
    if (!is_cast(b, member) && !b->begun)
        set_place(b, member, ABSENT);  // it may join again, or reappear
    else
        put_out(b, member, p->life, true,
                gone ? xasprintf("%s at %s has given this process up: its connection was closed", b->o.first,
                                 b->place)
                     : xasprintf("%s at %s has given this process up: it did not hear of it for %g s",
                                 b->o.first, b->place, b->o.silent_s));
    if (!is_cast(b, member) && b->begun) set_place(b, member, LOST);
    if (p->is == LOST) b->lost[b->losses++] = member;
    b->waiting_s = 0;
    tell(b, MEMBER_LOST, member, p->life, &p->come, &n);
}

// A silent member is asked: a connection shows that it is broken only when something is sent.
static void look_at(struct book *b, int member, bool asks, double turn_s) {
    struct place *p = &b->places[member];
    if (p->is != HERE) return;
    if (asks || turn_s - p->heard_s > 1.5 * b->o.beat_s) pong(b, member);
    bool gone = p->gone_s && turn_s - p->gone_s > MEET_GONE_S;
    if (gone || turn_s - p->heard_s > b->o.silent_s) lose(b, member, gone, turn_s);
}

// Sends the new losses to all ranks that are here.
static void say_losses(struct book *b) {
    struct meet_message m = meet_message(MEET_LOST, 0, 0);
    size_t bytes = (size_t)(b->losses - b->said_losses) * sizeof *b->lost;
    if (!bytes) return;
    struct meet_value *v = meet_value_of(meet_copy(b->lost + b->said_losses, bytes), bytes);
    for (int i = 0; i < b->o.size; i++)
        if (b->places[i].is == HERE) put_for(b, i, &m, v);
    b->said_losses = b->losses;
    meet_value_free(v);
}

void book_tick(struct book *b, double now_s) {
    double turn_s = turn_clock_turn(&b->turns, now_s);
    if (!meet_due(&b->look_s, fmin(LOOK_S, b->o.silent_s / LOOKS), now_s)) return;
    if (!b->begun_s) b->begun_s = turn_s;
    bool enough = b->o.least && b->o.size - b->absent >= b->o.least;
    if (!b->begun && enough && turn_s - b->begun_s > b->o.silent_s) begin(b);
    for (int i = 0; i < b->members; i++) look_at(b, i, now_s < b->asks_s, turn_s);
    post_tick(b->post, now_s);
    say_losses(b);
}

bool book_over(const struct book *b) { return b->here == 0; }

int book_cast(const struct book *b) {
    int count = 0;
    for (int i = b->o.size; i < b->members && b->cast_here; i++)
        count += b->places[i].is == HERE && !b->places[i].gone_s;
    return count;
}

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
    for (int i = 0; i < b->members; i++) {
        struct place *p = &b->places[i];
        for (int k = 0; k < p->pasts && k < PASTS_MAX; k++) free(p->past[k].why);
        free(p->past);
    }
    post_close(&b->post);
    free(b->identity);
    free(b->places);
    free(b->lost);
    free(b);
    *book = NULL;
}
