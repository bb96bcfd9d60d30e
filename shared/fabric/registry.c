#include "shared/fabric/registry.h"

#include <ctype.h>
#include <math.h>
#include <search.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/core/error.h"
#include "shared/core/text.h"
#include "shared/fabric/address.h"
#include "shared/fabric/mailbox.h"
#include "shared/time/poll_clock.h"

#define NAMED_MAX 8    // ranks that a message lists by number
#define LOOK_S    0.5  // time between two checks for silent members
#define LOOKS     16   // at least so many checks in silent_s
#define ENDED_MAX 64   // ended processes that are remembered per member
#define ALL_LEFT  (-1)

// ---------------------------------------------------------------- member 0's registry
enum presence { ABSENT, HERE, LEFT, LOST };

// A role member's process for which the job has ended: why it ended. If the process was lost, the member may join again
// with a new incarnation.
struct ended_process {
    uint64_t incarnation;
    bool lost;
    char *why;
};

// A member's entry in the registry.
struct member_entry {
    enum presence is;
    struct ended_process *ended;
    int ended_count;  // number of all added ones, of which the last ENDED_MAX are kept
    uint64_t incarnation;
    uint64_t gets;  // number of the member's last GET
    uint16_t heartbeat;
    double heard_s, closed_s;  // on the registry's poll clock. closed_s: 0 while the member is connected
    struct meet_join join;
};

struct named_value {
    char name[MEET_NAME_MAX];  // first: a name is compared as a value of that name
    bool exists;
    struct meet_value *value;
    uint8_t *waits;  // one bit per member that waits for the value; NULL: none waits
    int parts;
};

struct registry {
    struct rendezvous_options o;
    const char *where;
    meet_send *send_to;
    void (*news)(void *ctx, const struct member_news *n);
    void *ctx;
    char *identity;
    struct member_entry *entries;
    int members;
    bool begun;    // all ranks have joined, or enough of them (`min_ranks`)
    void *values;  // struct named_value, a tree of tsearch(3) in the order of their names
    size_t value_count;
    struct mailbox *mailbox;
    uint64_t gathers;  // number of complete gathers
    struct poll_clock turns;
    double look_s, asks_s;  // asks_s: until then each check asks all members
    double begun_s;         // on the poll clock
    int absent, here;       // absent: ranks that have not joined; here: ranks that are connected
    int roles_here;
    char waiting[MEET_TEXT_MAX];
    double waiting_s;   // when `waiting` was written; 0: it is out of date
    int *lost, losses;  // in the order of the losses
    int sent_losses;    // number of losses that were sent to all ranks
    int ended_by;       // a rank, or ALL_LEFT: all ranks have said goodbye
    char ended[MEET_TEXT_MAX];
};

static void send_to(void *ctx, int rank, struct meet_message *m, const void *data);

struct registry *registry_create(const struct rendezvous_options *o, const char *where, meet_send *send,
                                 void (*news)(void *ctx, const struct member_news *n), void *ctx) {
    struct registry *b = xcalloc(1, sizeof *b);
    *b = (struct registry){.o = *o, .where = where, .send_to = send, .news = news, .ctx = ctx};
    b->turns = (struct poll_clock){.lost_s = o->silent_s, .pause_s = MEET_PAUSE_S};
    b->o.identity = b->identity = xstrdup(o->identity);  // a copy, since ranks may send JOIN much later
    if (!o->member_0) b->o.member_0 = "rank 0";
    if (!(o->beat_s > 0)) b->o.beat_s = MEET_RESEND_S;
    b->members = meet_members(o->size, o->roles);
    b->entries = xcalloc((size_t)b->members, sizeof *b->entries);
    b->lost = xcalloc((size_t)o->size, sizeof *b->lost);
    b->absent = o->size;
    b->mailbox = mailbox_open(b->members, send_to, b);
    return b;
}

static bool is_role(const struct registry *b, int member) {
    return member >= b->o.size && member < b->members;
}

// Reports news of a member to member 0's process. c: the member's JOIN. n: zeroed, except the fields that are not set
// here.
static void report(struct registry *b, enum member_news_kind kind, int member, uint64_t incarnation,
                   const struct meet_join *c, struct member_news *n) {
    n->kind = kind;
    n->member = member;
    n->incarnation = incarnation;
    n->pid = c->member.pid;
    memcpy(n->host, c->member.host, sizeof n->host);
    if (b->news)
        b->news(b->ctx, n);
    else
        free(n->data);
}

static void send_to(void *ctx, int rank, struct meet_message *m, const void *data) {
    struct registry *b = ctx;
    if (m->kind != MEET_ENDED) m->rank = rank;
    b->send_to(b->ctx, rank, b->entries[rank].incarnation, m, data);
}

static void queue_for(struct registry *b, int rank, const struct meet_message *m, struct meet_value *v) {
    v->users++;
    mailbox_queue(b->mailbox, rank, m, v);
    mailbox_flush(b->mailbox, rank, true);
}

static void send_job_end(struct registry *b, int rank) {
    struct meet_message m = meet_message(MEET_ENDED, b->ended_by, 0);
    struct meet_value *v = meet_value_of(xstrdup(b->ended), strlen(b->ended));
    m.count = MEET_JOB_OVER;
    queue_for(b, rank, &m, v);
    meet_value_free(v);
}

static void end_job(struct registry *b, int rank, const char *why) {
    if (*b->ended) return;
    snprintf(b->ended, sizeof b->ended, "%s", why);
    b->ended_by = rank;
    for (int i = 0; i < b->members; i++)
        if (b->entries[i].is == HERE) send_job_end(b, i);
}

// "ranks 1, 3-5, 9 and 12 more"
static void write_absent(const struct registry *b, char *text, size_t size) {
    int ranges = 0, more = 0, absent = 0;
    size_t at = 0;
    for (int i = 0, to; i < b->o.size; i = to + 1) {
        for (to = i; to + 1 < b->o.size && (b->entries[to + 1].is == ABSENT) == (b->entries[i].is == ABSENT);)
            to++;
        if (b->entries[i].is != ABSENT) continue;
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

// The text is written at most once per MEET_RESEND_S: many ranks may join at once.
static void send_waiting(struct registry *b, int rank, double now_s) {
    struct meet_message m = meet_message(MEET_WAITING, rank, 0);
    if (!b->waiting_s || now_s - b->waiting_s >= MEET_RESEND_S) {
        write_absent(b, b->waiting, sizeof b->waiting);
        b->waiting_s = now_s;
    }
    m.count = (uint64_t)b->absent;
    m.bytes = strlen(b->waiting);
    mailbox_send_once(b->mailbox, rank, m, b->waiting);
}

static void set_presence(struct registry *b, int rank, enum presence is) {
    struct member_entry *p = &b->entries[rank];
    int *here = is_role(b, rank) ? &b->roles_here : &b->here;
    *here += (is == HERE) - (p->is == HERE);
    if (!is_role(b, rank)) b->absent += (is == ABSENT) - (p->is == ABSENT);
    p->is = is;
}

// ---------------------------------------------------------------- ended processes of the roles
static struct ended_process *find_ended(const struct member_entry *p, uint64_t incarnation) {
    for (int i = 0; i < p->ended_count && i < ENDED_MAX; i++)
        if (p->ended[i].incarnation == incarnation) return &p->ended[i];
    return NULL;
}

static void send_end_reason(struct registry *b, int member, const struct ended_process *x) {
    struct meet_message m = meet_message(MEET_ENDED, member, 0);
    m.count = x->lost ? MEET_LOST_ME : MEET_ENDED_ME;
    m.bytes = strlen(x->why);
    b->send_to(b->ctx, member, x->incarnation, &m, x->why);
}

// Ends the job for one process and frees its entry. A process that was not lost is sent the reason now. A lost process
// is sent the reason when its next message arrives: another process may have the entry by then. Takes ownership of why.
static void end_process(struct registry *b, int member, uint64_t incarnation, bool lost, char *why) {
    struct member_entry *p = &b->entries[member];
    struct ended_process *x = find_ended(p, incarnation);
    if (!x && (p->is == ABSENT || p->incarnation != incarnation)) {
        free(why);
        return;
    }
    if (!x) {
        set_presence(b, member, ABSENT);
        mailbox_reset(b->mailbox, member);
        if (p->ended_count < ENDED_MAX) {
            p->ended = xrealloc(p->ended, (size_t)(p->ended_count + 1) * sizeof *x);
            p->ended[p->ended_count] = (struct ended_process){0};
        }
        x = &p->ended[p->ended_count++ % ENDED_MAX];
    }
    free(x->why);
    *x = (struct ended_process){incarnation, lost, why};
    if (!lost) send_end_reason(b, member, x);
}

// ---------------------------------------------------------------- values by name
static int by_name(const void *a, const void *b) { return strcmp(a, b); }

static struct named_value *value_named(struct registry *b, const char *name) {
    struct named_value **found = tfind(name, &b->values, by_name);
    if (found) return *found;
    struct named_value *e = xcalloc(1, sizeof *e);
    snprintf(e->name, sizeof e->name, "%s", name);
    if (!tsearch(e, &b->values, by_name)) fail("out of host memory"), exit(EXIT_RUN_FAILED);
    b->value_count++;
    return e;
}

static void named_value_free(void *value) {
    struct named_value *e = value;
    meet_value_free(e->value);
    free(e->waits);
    free(e);
}

static void drop_value(struct registry *b, const char *name) {
    struct named_value **found = tfind(name, &b->values, by_name), *e = found ? *found : NULL;
    if (!e) return;
    tdelete(e, &b->values, by_name);
    b->value_count--;
    named_value_free(e);
}

static void send_value(struct registry *b, int rank, const struct named_value *e) {
    struct meet_message m = meet_message(MEET_GOT, rank, 0);
    memcpy(m.name, e->name, sizeof m.name);
    m.count = b->entries[rank].gets;
    queue_for(b, rank, &m, e->value);
}

static void publish(struct registry *b, struct named_value *e) {
    e->exists = true;
    for (int i = 0; i < b->members && e->waits; i++)
        if (e->waits[i / 8] >> i % 8 & 1 && b->entries[i].is == HERE) send_value(b, i, e);
    free(e->waits);
    e->waits = NULL;
}

// Takes ownership of v.
static struct named_value *put_value(struct registry *b, const char *name, struct meet_value *v) {
    struct named_value *e = value_named(b, name);
    meet_value_free(e->value);
    e->value = v;
    publish(b, e);
    return e;
}

// ---------------------------------------------------------------- joining
// Machines are numbered in the order of the first rank on each. If rank 0's host name resolves to loopback on its own
// machine, the table gets the address at which another machine reached rank 0.
static void begin_job(struct registry *b) {
    int machines = 0;
    const char *reach = NULL;
    size_t bytes;
    struct rendezvous_member *table = xcalloc((size_t)b->o.size, sizeof *table);
    for (int i = 0; i < b->o.size; i++) {
        struct rendezvous_member *m = &table[i];
        *m = b->entries[i].join.member;
        m->machine = -1;
        m->local_rank = 0;
        if (b->entries[i].is == ABSENT) {
            b->lost[b->losses++] = i;
            continue;
        }
        for (int k = i - 1; k >= 0 && m->machine < 0; k--)
            if (b->entries[k].join.machine == b->entries[i].join.machine) {
                m->machine = table[k].machine;
                m->local_rank = table[k].local_rank + 1;
            }
        if (m->machine < 0) m->machine = machines++;
        if (m->machine && !reach) reach = b->entries[i].join.reach;
    }
    for (int i = 0; i < b->o.size && reach; i++)
        if (!table[i].machine && address_is_loopback(table[i].address))
            snprintf(table[i].address, sizeof table[i].address, "%s", reach);
    b->begun = true;
    b->sent_losses = b->losses;  // the table lists them already
    char *text = meet_table_write(table, b->o.size, &bytes);
    const struct named_value *e = put_value(b, MEET_TABLE, meet_value_of(text, bytes));
    for (int i = 0; i < b->o.size; i++)
        if (b->entries[i].is == HERE) send_value(b, i, e);
    free(table);
}

// Returns how the job of `name` differs from rank 0's, malloc'd, or NULL if it is the same.
static char *differs(const struct registry *b, const char *name, const char *text) {
    if (!strcmp(b->o.identity, text)) return NULL;
    return b->o.differs ? b->o.differs(name, text, b->o.member_0, b->o.identity)
                        : xasprintf("%s is of another job than %s", name, b->o.member_0);
}

// Returns whether the sender of a JOIN has a role: its number is not below the number of ranks that it was given.
static bool joins_role(const struct meet_message *m) { return m->rank >= m->size; }

// Returns the entry that a JOIN is for, or NULL if the sender was given other member counts.
static struct member_entry *entry_for(const struct registry *b, const struct meet_message *m,
                                      const struct meet_join *c) {
    bool same = m->size == b->o.size;
    for (int i = 0; i < MEET_ROLES_MAX; i++) same = same && c->counts[i] == b->o.roles[i].count;
    return same && m->rank >= 0 && m->rank < b->members ? &b->entries[m->rank] : NULL;
}

// "5 ranks", "4 workers, 2 servers"
static char *counts_text(const struct registry *b, int size, const int *counts) {
    char *text = size > 1 || b->members == b->o.size ? xasprintf("%d ranks", size) : xstrdup("");
    for (int i = 0; i < MEET_ROLES_MAX; i++)
        if (b->o.roles[i].count)
            text_add(&text, "%s%d %s%s", *text ? ", " : "", counts[i], b->o.roles[i].word,
                     counts[i] == 1 ? "" : "s");
    return text;
}

static void refuse(struct registry *b, const struct meet_message *m, const struct meet_join *c,
                   const char *why) {
    struct meet_message no = meet_message(MEET_REFUSED, m->rank, m->incarnation);
    struct member_news n = {0};
    no.bytes = strlen(why);
    b->send_to(b->ctx, m->rank, m->incarnation, &no, why);
    snprintf(n.why, sizeof n.why, "%s", why);
    report(b, MEMBER_REFUSED, entry_for(b, m, c) ? m->rank : -1, m->incarnation, c, &n);
}

// Returns why the process is refused, malloc'd, or NULL if it may join. *ends: the refusal also ends the rendezvous.
static char *objection(const struct registry *b, const struct meet_message *m, const struct meet_join *c,
                       const char *identity, bool *ends) {
    const struct member_entry *p = entry_for(b, m, c);
    bool roles = joins_role(m);
    char name[MEET_WHO_MAX];
    *ends = !b->begun && !roles;
    if (!p) {
        struct meet_role of[MEET_ROLES_MAX];
        int own[MEET_ROLES_MAX];
        for (int i = 0; i < MEET_ROLES_MAX; i++) {
            own[i] = b->o.roles[i].count;
            of[i] = (struct meet_role){b->o.roles[i].word, c->counts[i]};
        }
        const char *who = *meet_member_name(m->rank, m->size, of, name) ? name : "a process";
        char *its = counts_text(b, m->size, c->counts), *ours = counts_text(b, b->o.size, own);
        char *why = xasprintf(
            "%s of %s was told that there are %s, %s at %s that there are %s: start all with the same number",
            who, c->member.host, its, b->o.member_0, b->where, ours);
        free(its);
        free(ours);
        return why;
    }
    meet_member_name(m->rank, b->o.size, b->o.roles, name);
    bool again = p->is != ABSENT && p->incarnation == m->incarnation, taken = !again && p->is == HERE;
    if (roles)
        return taken && !b->o.replace ? xasprintf("%s has joined already: process %d of %s; each joins once",
                                                  name, p->join.member.pid, p->join.member.host)
                                      : NULL;
    if (!again && b->begun && p->is == ABSENT)
        return xasprintf("%s joined %s too late: the job has started without it", name, b->where);
    if (!again && (b->begun || taken)) {
        *ends = false;
        return xasprintf("%s has joined %s twice: process %d of %s joined first, process %d of %s later; %s",
                         name, b->where, p->join.member.pid, p->join.member.host, c->member.pid,
                         c->member.host,
                         b->begun ? "give another job another port" : "give each process a rank of its own");
    }
    char *where = xasprintf("%s on %s", name, c->member.host);
    char *why = differs(b, where, identity);
    free(where);
    return why;
}

static void send_pong(struct registry *b, int rank) {
    mailbox_send_once(b->mailbox, rank, meet_message(MEET_PONG, rank, 0), NULL);
}

// Answers a member's heartbeat.
static void answer_heartbeat(struct registry *b, int rank, double now_s) {
    if (b->begun || is_role(b, rank))
        send_pong(b, rank);
    else
        send_waiting(b, rank, now_s);
}

// A new process takes the entry, and replaces the process that held it, if any.
static void admit(struct registry *b, const struct meet_message *m, const struct meet_join *c) {
    struct member_entry *p = &b->entries[m->rank];
    struct member_news lost = {.word = "replaced", .why = "was started again"}, came = {0};
    const struct ended_process *ended = find_ended(p, p->incarnation);
    char name[MEET_WHO_MAX];
    meet_member_name(m->rank, b->o.size, b->o.roles, name);
    if (p->is == HERE) report(b, MEMBER_LOST, m->rank, p->incarnation, &p->join, &lost);
    if (is_role(b, m->rank) && (!ended || ended->lost))
        end_process(b, m->rank, p->incarnation, false,
                    xasprintf("%s has been started again: this process is not needed any more", name));
    set_presence(b, m->rank, HERE);
    if (p->incarnation != m->incarnation) mailbox_reset(b->mailbox, m->rank);
    *p = (struct member_entry){.is = HERE,
                               .ended = p->ended,
                               .ended_count = p->ended_count,
                               .incarnation = m->incarnation,
                               .join = *c};
    b->waiting_s = 0;
    report(b, MEMBER_JOINED, m->rank, p->incarnation, &p->join, &came);
    if (*b->ended) send_job_end(b, m->rank);
}

static void on_join(struct registry *b, const struct meet_message *m, const void *data, double now_s) {
    struct meet_join c;
    if (m->bytes < sizeof c) return;
    memcpy(&c, data, sizeof c);
    c.member.host[sizeof c.member.host - 1] = c.member.address[sizeof c.member.address - 1] =
        c.reach[sizeof c.reach - 1] = 0;
    for (char *at = c.member.host; *at; at++)
        // The text is printed, so it must not contain a line break.
        if (iscntrl((unsigned char)*at)) *at = '?';
    struct member_entry *p = entry_for(b, m, &c);
    const struct ended_process *ended = p ? find_ended(p, m->incarnation) : NULL;
    if (ended) {
        send_end_reason(b, m->rank, ended);
        return;
    }
    bool ends = false;
    char *text = meet_copy((const char *)data + sizeof c, m->bytes - sizeof c),
         *why = objection(b, m, &c, text, &ends);
    if (why) {
        refuse(b, m, &c, why);
        if (ends) end_job(b, p ? m->rank : 0, why);
    } else {
        if (p->is == ABSENT || p->incarnation != m->incarnation) admit(b, m, &c);
        p->heard_s = poll_clock_at(&b->turns, now_s);
        p->closed_s = 0;
        if (!b->begun && !b->absent && !*b->ended) begin_job(b);
        answer_heartbeat(b, m->rank, now_s);
    }
    free(why);
    free(text);
}

// ---------------------------------------------------------------- messages of members
// Returns whether the name is a gather that is complete.
static bool gather_is_complete(const struct registry *b, const char *name) {
    return *name == '#' && strcmp(name, MEET_TABLE) != 0 && strtoull(name + 1, NULL, 10) < b->gathers;
}

// Stores rank's part of gather k, named "#k". A rank that takes part in gather k has the result of gather k-1, so that
// one is dropped.
static void put_part(struct registry *b, int rank, const char *name, const char *data, size_t bytes) {
    if (*name != '#' || gather_is_complete(b, name)) return;
    struct named_value *e = value_named(b, name);
    size_t size = (size_t)b->o.size, all = e->value ? e->value->bytes / size : bytes;
    char why[MEET_TEXT_MAX] = "", before[MEET_NAME_MAX];
    if (bytes > MEET_DATA_MAX / size)
        snprintf(why, sizeof why, "rank %d sends %zu bytes to gather %s: at most %zu per rank", rank, bytes,
                 name, MEET_DATA_MAX / size);
    else if (bytes != all)
        snprintf(why, sizeof why, "rank %d sends %zu bytes to gather %s, the others %zu", rank, bytes, name,
                 all);
    if (*why) end_job(b, rank, why);
    if (*why || e->exists) return;
    if (!e->value) e->value = meet_value_of(xcalloc(size, bytes + 1), size * bytes);
    if (bytes) memcpy(e->value->data + (size_t)rank * bytes, data, bytes);
    if (++e->parts < b->o.size) return;  // numbered messages arrive once, in order
    publish(b, e);
    unsigned long long k = strtoull(name + 1, NULL, 10);
    if (k > b->gathers) b->gathers = k;
    snprintf(before, sizeof before, "#%llu", k - 1);
    if (k > 1) drop_value(b, before);
}

static void send_heartbeats(struct registry *b, int member) {
    size_t bytes = (size_t)b->o.size * sizeof b->entries->heartbeat;
    uint16_t *heartbeats = xcalloc(1, bytes);
    struct named_value e = {.name = MEET_HEARTBEATS, .value = meet_value_of(heartbeats, bytes)};
    for (int i = 0; i < b->o.size; i++) heartbeats[i] = b->entries[i].heartbeat;
    send_value(b, member, &e);
    meet_value_free(e.value);
}

static void on_get(struct registry *b, const struct meet_message *m) {
    b->entries[m->rank].gets = m->count;
    if (!strcmp(m->name, MEET_HEARTBEATS)) {
        send_heartbeats(b, m->rank);
        return;
    }
    if (gather_is_complete(b, m->name)) return;
    struct named_value *e = value_named(b, m->name);
    if (e->exists) {
        send_value(b, m->rank, e);
        return;
    }
    if (!e->waits) e->waits = xcalloc((size_t)b->members / 8 + 1, 1);
    e->waits[m->rank / 8] |= (uint8_t)(1 << m->rank % 8);
}

// Carries out a message that has arrived whole. Takes ownership of v.
static void on_message(struct registry *b, const struct meet_message *m, struct member_entry *p,
                       struct meet_value *v) {
    if (m->kind == MEET_PUT) {
        put_value(b, m->name, v);
        return;
    }
    if (m->kind == MEET_GET) on_get(b, m);
    bool rank = m->rank < b->o.size;
    int member;
    unsigned long long incarnation;
    struct member_news n = {0};
    if (m->kind == MEET_PART && rank) put_part(b, m->rank, m->name, v->data, v->bytes);
    if (m->kind == MEET_DROP) drop_value(b, m->name);
    if (m->kind == MEET_END_PROCESS && m->rank == 0 &&
        sscanf(m->name, "%d %llx", &member, &incarnation) == 2 && is_role(b, member))
        end_process(b, member, incarnation, false, xstrdup(v->data));
    if (m->kind == MEET_ABORT && rank) end_job(b, m->rank, v->data);
    if (m->kind == MEET_BYE && p->is != LEFT) {
        set_presence(b, m->rank, LEFT);
        report(b, MEMBER_LEFT, m->rank, p->incarnation, &p->join, &n);
        if (registry_is_over(b) && b->roles_here) end_job(b, ALL_LEFT, "the job has ended");
    }
    if (m->kind == MEET_SEND && p->is == HERE) {
        memcpy(n.word, m->name, sizeof n.word);
        n.data = v->data;
        n.bytes = v->bytes;
        v->data = NULL;
        report(b, MEMBER_SENT, m->rank, p->incarnation, &p->join, &n);
    }
    meet_value_free(v);
}

void registry_receive(struct registry *b, const struct meet_message *m, const void *data, double now_s) {
    if (m->kind == MEET_JOIN) {
        on_join(b, m, data, now_s);
        return;
    }
    if (m->rank < 0 || m->rank >= b->members || m->kind > MEET_PING) return;
    struct member_entry *p = &b->entries[m->rank];
    if (p->is == ABSENT || p->is == LOST || p->incarnation != m->incarnation) {
        const struct ended_process *ended = find_ended(p, m->incarnation);
        if (ended) send_end_reason(b, m->rank, ended);
        return;
    }
    p->heard_s = poll_clock_at(&b->turns, now_s);
    p->closed_s = 0;
    struct meet_value *v = mailbox_receive(b->mailbox, m->rank, m, data, now_s);
    if (v) on_message(b, m, p, v);
    if (m->kind == MEET_PING) {
        p->heartbeat = meet_heartbeat(p->heartbeat, (int)m->count);
        answer_heartbeat(b, m->rank, now_s);
    }
    mailbox_flush(b->mailbox, m->rank, true);
}

void registry_unreachable(struct registry *b, int rank, uint64_t incarnation, double now_s) {
    if (rank < 0 || rank >= b->members) return;  // the member number of a refused process
    struct member_entry *p = &b->entries[rank];
    if (p->is == HERE && p->incarnation == incarnation && !p->closed_s)
        p->closed_s = poll_clock_at(&b->turns, now_s);
}

void registry_recheck(struct registry *b, double now_s) {
    b->look_s = 0;
    b->asks_s = now_s + MEET_RESEND_S;
}

static void lose_member(struct registry *b, int member, bool gone, double turn_s) {
    struct member_entry *p = &b->entries[member];
    struct member_news n = {.silent_s = turn_s - p->heard_s};
    char stood[POLL_CLOCK_TEXT];
    snprintf(n.word, sizeof n.word, gone ? "gone" : "silent");
    if (gone)
        snprintf(n.why, sizeof n.why, "has gone: its connection has closed");
    else
        snprintf(n.why, sizeof n.why, "was silent for %.1f s%s", n.silent_s,
                 poll_clock_text(&b->turns, p->heard_s, stood));
    if (!is_role(b, member) && !b->begun)
        set_presence(b, member, ABSENT);  // the member may join again, or its process may reappear
    else
        end_process(
            b, member, p->incarnation, true,
            gone ? xasprintf("%s at %s has given this process up: its connection was closed", b->o.member_0,
                             b->where)
                 : xasprintf("%s at %s has given this process up: it received nothing from it for %g s",
                             b->o.member_0, b->where, b->o.silent_s));
    if (!is_role(b, member) && b->begun) set_presence(b, member, LOST);
    if (p->is == LOST) b->lost[b->losses++] = member;
    b->waiting_s = 0;
    report(b, MEMBER_LOST, member, p->incarnation, &p->join, &n);
}

// A silent member is asked: a connection shows that it is broken only when something is sent.
static void check_member(struct registry *b, int member, bool asks, double turn_s) {
    struct member_entry *p = &b->entries[member];
    if (p->is != HERE) return;
    if (asks || turn_s - p->heard_s > 1.5 * b->o.beat_s) send_pong(b, member);
    bool gone = p->closed_s && turn_s - p->closed_s > MEET_CLOSED_S;
    if (gone || turn_s - p->heard_s > b->o.silent_s) lose_member(b, member, gone, turn_s);
}

// Sends the new losses to all ranks that are here.
static void send_losses(struct registry *b) {
    struct meet_message m = meet_message(MEET_LOST, 0, 0);
    size_t bytes = (size_t)(b->losses - b->sent_losses) * sizeof *b->lost;
    if (!bytes) return;
    struct meet_value *v = meet_value_of(meet_copy(b->lost + b->sent_losses, bytes), bytes);
    for (int i = 0; i < b->o.size; i++)
        if (b->entries[i].is == HERE) queue_for(b, i, &m, v);
    b->sent_losses = b->losses;
    meet_value_free(v);
}

void registry_tick(struct registry *b, double now_s) {
    double turn_s = poll_clock_poll(&b->turns, now_s);
    if (!meet_due(&b->look_s, fmin(LOOK_S, b->o.silent_s / LOOKS), now_s)) return;
    if (!b->begun_s) b->begun_s = turn_s;
    bool enough = b->o.min_ranks && b->o.size - b->absent >= b->o.min_ranks;
    if (!b->begun && enough && turn_s - b->begun_s > b->o.silent_s) begin_job(b);
    for (int i = 0; i < b->members; i++) check_member(b, i, now_s < b->asks_s, turn_s);
    mailbox_tick(b->mailbox, now_s);
    send_losses(b);
}

bool registry_is_over(const struct registry *b) { return b->here == 0; }

int registry_roles_here(const struct registry *b) {
    int count = 0;
    for (int i = b->o.size; i < b->members && b->roles_here; i++)
        count += b->entries[i].is == HERE && !b->entries[i].closed_s;
    return count;
}

int registry_first_lost(const struct registry *b) { return b->losses ? b->lost[0] : -1; }

size_t registry_name_count(const struct registry *b) { return b->value_count; }

void registry_destroy(struct registry **registry) {
    struct registry *b = *registry;
    if (!b) return;
    tdestroy(b->values, named_value_free);
    for (int i = 0; i < b->members; i++) {
        struct member_entry *p = &b->entries[i];
        for (int k = 0; k < p->ended_count && k < ENDED_MAX; k++) free(p->ended[k].why);
        free(p->ended);
    }
    mailbox_close(&b->mailbox);
    free(b->identity);
    free(b->entries);
    free(b->lost);
    free(b);
    *registry = NULL;
}
