// How ranks that are threads meet, wait for mail, and fail.
//
// Meeting     A generation barrier per channel. The first meeting of an operation ends early at the deadline
//             (then the whole hub is aborted) or by an abort. A rank that leaves it has not begun to load,
//             and an aborted hub completes no first meeting any more. The later meetings do not end early:
//             all ranks are in the operation by then, and copying memory, or enqueuing copies, ends by
//             itself. Hence, whatever went wrong, no rank returns while a peer may still read its buffers.
// Waiting     A wait begins by asking again and again: waking a thread that sleeps takes longer than a small message.
//             Where every rank can have a core it keeps its own for as long as a small message takes; then it gives the
//             core away between questions, and sleeps once the wait has taken longer than waking would.
// Lock order  channel, then hub.
#include "decentral/collective/threads_hub.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "decentral/collective/threads_impl.h"
#include "kernels/backend.h"
#include "shared/core/error.h"
#include "shared/launch/stop.h"

// ---------------------------------------------------------------- life
#define SMALL_MOST  ((size_t)64 << 10)   // of a rank's copies
#define SMALL_BYTES ((size_t)512 << 10)  // and of all ranks'

static void channel_open(struct threads_channel *ch, int size) {
    pthread_mutex_init(&ch->lock, NULL);
    cond_init(&ch->moved);
    ch->slots = xcalloc((unsigned long)size, sizeof *ch->slots);
    ch->size = size;
    ch->small_bytes = SMALL_BYTES / (size_t)size < SMALL_MOST ? SMALL_BYTES / (size_t)size : SMALL_MOST;
}

static void channel_close(struct threads_channel *ch) {
    pthread_mutex_destroy(&ch->lock);
    pthread_cond_destroy(&ch->moved);
    for (int r = 0; r < ch->size; r++) free(ch->slots[r].copies);
    free(ch->slots);
    free(ch->mail);
}

// Visits every channel without the hub's lock: teams are only added, at the front.
static void wake_all(struct threads_hub *h) {
    pthread_mutex_lock(&h->lock);
    struct threads_team *teams = h->teams;
    pthread_mutex_unlock(&h->lock);
    for (struct threads_channel *ch = h->channels; ch; teams = teams ? teams->next : NULL) {
        for (int i = 0; i < COLLECTIVE_CHANNELS; i++) {
            pthread_mutex_lock(&ch[i].lock);
            pthread_cond_broadcast(&ch[i].moved);
            pthread_mutex_unlock(&ch[i].lock);
        }
        ch = teams ? teams->channels : NULL;
    }
}

struct threads_hub *threads_hub_create(int size) {
    if (size < 1 || size > REDUCE_MAX) {
        fail("local collectives: %d ranks asked for; 1 to %d are possible", size, REDUCE_MAX);
        return NULL;
    }
    struct threads_hub *h = xcalloc(1, sizeof *h);
    h->size = size;
    h->roomy = size <= sysconf(_SC_NPROCESSORS_ONLN);
    h->devices = xcalloc((unsigned long)size, sizeof *h->devices);
    h->begins = xcalloc((unsigned long)size, sizeof *h->begins);
    h->told = xcalloc((unsigned long)size, sizeof *h->told);
    pthread_mutex_init(&h->lock, NULL);
    atomic_init(&h->aborted, false);
    for (int i = 0; i < COLLECTIVE_CHANNELS; i++) {
        channel_open(&h->channels[i], size);
        h->channels[i].mail = xcalloc((unsigned long)size * (unsigned long)size, sizeof *h->channels[i].mail);
    }
    return h;
}

struct threads_channel *threads_hub_channel(struct threads_hub *h, struct collective_team team, int index) {
    if (team.count == h->size) return &h->channels[index];
    pthread_mutex_lock(&h->lock);
    struct threads_team *at = h->teams;
    while (at && memcmp(&at->team, &team, sizeof team) != 0) at = at->next;
    if (!at) {
        at = xcalloc(1, sizeof *at);
        at->team = team;
        at->next = h->teams;
        for (int i = 0; i < COLLECTIVE_CHANNELS; i++) channel_open(&at->channels[i], team.count);
        h->teams = at;
    }
    pthread_mutex_unlock(&h->lock);
    return &at->channels[index];
}

void threads_hub_destroy(struct threads_hub **hub) {
    struct threads_hub *h = *hub;
    if (!h) return;
    for (int i = 0; i < COLLECTIVE_CHANNELS; i++) channel_close(&h->channels[i]);
    for (struct threads_team *t = h->teams, *next; t; t = next) {
        next = t->next;
        for (int i = 0; i < COLLECTIVE_CHANNELS; i++) channel_close(&t->channels[i]);
        free(t);
    }
    pthread_mutex_destroy(&h->lock);
    free(h->devices);
    free(h->begins);
    free(h->told);
    free(h);
    *hub = NULL;
}

void threads_hub_mark(struct threads_hub *h, const char *why) {
    pthread_mutex_lock(&h->lock);
    if (!atomic_load(&h->aborted)) {
        snprintf(h->why, sizeof h->why, "%s", why);
        atomic_store(&h->aborted, true);
    }
    pthread_mutex_unlock(&h->lock);
}

// No channel may be locked: waking the waiters takes each channel's lock.
void threads_hub_abort(struct threads_hub *h, const char *why) {
    threads_hub_mark(h, why);
    wake_all(h);
}

bool threads_hub_aborted(struct threads_hub *h, char *why, size_t why_bytes) {
    if (!atomic_load(&h->aborted)) return false;
    snprintf(why, why_bytes, "%s", h->why);
    return true;
}

// ---------------------------------------------------------------- running
struct hub_rank {
    int (*work)(void *ctx, struct threads_hub *hub, int rank);
    void *ctx;
    struct threads_hub *hub;
    int rank, rc;
    pthread_t thread;
    char *why;        // of rc -1, malloc'd
    double failed_s;  // when
};

static void *rank_main(void *arg) {
    struct hub_rank *r = arg;
    r->rc = r->work(r->ctx, r->hub, r->rank);
    threads_hub_computes(r->hub, r->rank, NULL);
    if (!r->rc) return NULL;
    r->why = xstrdup(error_last());
    r->failed_s = now_seconds();
    threads_hub_abort(r->hub, r->why);  // the others must not wait for this rank
    return NULL;
}

// The rank whose failure the others' are consequences of, or NULL. It told them why before it left; where
// none did in these words, the first to leave.
static const struct hub_rank *first_to_fail(const struct hub_rank *ranks, int count,
                                            struct threads_hub *hub) {
    const struct hub_rank *first = NULL;
    char why[512] = "";
    bool told = threads_hub_aborted(hub, why, sizeof why);
    for (int i = 0; i < count; i++) {
        if (!ranks[i].rc) continue;
        if (told && !strncmp(ranks[i].why, why, sizeof why - 1)) return &ranks[i];
        if (!first || ranks[i].failed_s < first->failed_s) first = &ranks[i];
    }
    return first;
}

int threads_hub_run(int size, const char *flag, int (*work)(void *ctx, struct threads_hub *hub, int rank),
                    void *ctx) {
    int started = 0, rc = 0;
    struct threads_hub *hub = threads_hub_create(size);
    if (!hub) return -1;
    struct hub_rank *ranks = xcalloc((unsigned long)size, sizeof *ranks);
    memset(hub->begins, true, (size_t)size * sizeof *hub->begins);
    for (; started < size; started++) {
        struct hub_rank *r = &ranks[started];
        *r = (struct hub_rank){.work = work, .ctx = ctx, .hub = hub, .rank = started};
        if (pthread_create(&r->thread, NULL, rank_main, r)) break;
    }
    if (started < size) {
        rc = fail("cannot start the thread of rank %d of %d: lower %s", started, size, flag);
        threads_hub_abort(hub, error_last());
    }
    for (int i = 0; i < started; i++) pthread_join(ranks[i].thread, NULL);
    const struct hub_rank *first = first_to_fail(ranks, started, hub);
    if (first && !rc) error_take_over(first->why);
    if (first) rc = -1;
    for (int i = 0; i < started; i++) free(ranks[i].why);
    free(ranks);
    threads_hub_destroy(&hub);
    return rc;
}

// ---------------------------------------------------------------- waiting and giving up
#define KEEP_S 10e-6  // about what a small message takes, once both ranks are there
#define ASK_S \
    50e-6         // about what a sleep and waking up take: longer waits would cost others more than they save
#define LOOKS 16  // between two looks at the clock

// Between two questions of a wait. since: when it began. Whether to go on asking.
static bool ask_again(const struct threads_hub *h, double since) {
    double waited_s = now_seconds() - since;
    if (!h->roomy || waited_s > KEEP_S) sched_yield();
    return waited_s < ASK_S;
}

static void breathe(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

// Without the lock: whether the meeting has ended while others could still be expected to come at once. What the others
// have written before it is visible then.
static bool meeting_ends_soon(const struct collective_threads *t, uint64_t generation) {
    double since = now_seconds();
    do {
        for (int i = 0; i < LOOKS; i++, breathe())
            if (atomic_load_explicit(&t->channel->generation, memory_order_acquire) != generation)
                return true;
    } while (ask_again(t->hub, since));
    return false;
}

// A deadline in quarters. A process that stood still (Ctrl-Z, a computer that slept) wakes behind the end of one
// quarter and not of all: its ranks have the others yet to come in. So has a rank that was at work a quarter ago: what it
// did is done, and its threads may wait for a core.
struct patience {
    double since;
    struct timespec until;
    int quarters;
    bool worked;  // somebody did, when the last quarter ended
};

static struct patience patience_of(const struct collective_threads *t) {
    return (struct patience){now_seconds(), moment_in(0.25 * t->impl.head.deadline_s), 4, false};
}

int threads_fail_aborted(struct collective_threads *t, enum collective_primitive p) {
    return collective_impl_fail(&t->impl, "%s on channel %d: aborted: %s", collective_name(p), t->index,
                                t->hub->why);
}

int threads_fail_and_abort(struct collective_threads *t, const char *text) {
    collective_impl_fail(&t->impl, "%s", text);
    threads_hub_abort(t->hub, text);
    return -1;
}

// ---------------------------------------------------------------- slow is not dead
void threads_hub_computes(struct threads_hub *h, int rank, struct device *dev) {
    pthread_mutex_lock(&h->lock);
    h->devices[rank] = dev;
    h->begins[rank] = false;
    pthread_mutex_unlock(&h->lock);
}

// Whether the rank has come to the meeting, or is none of those who are to come.
static bool is_present(const struct collective_threads *t, int rank) {
    const struct collective_team team = t->seat->team;
    int place = collective_place_in(team, rank);
    return rank < team.first || place >= t->size || collective_member(team, place) != rank ||
           t->channel->slots[place].present;
}

// Threads of one process live as long as it does. Where a device is at work, or the thread beside it, its rank is slow, and
// the others may wait for each other because of it; where none is, a rank is stuck. With the channel locked; not the hub.
static bool somebody_is_slow(struct collective_threads *t, const struct collective_call *call,
                             const struct patience *p) {
    struct threads_hub *h = t->hub;
    bool any = false, late = p->quarters <= 1;
    pthread_mutex_lock(&h->lock);
    for (int i = 0; i < h->size; i++) {
        enum dev_work work = h->begins[i] ? DEV_HOST_WORKS : DEV_RESTS;
        if (h->devices[i]) work = dev_at_work(h->devices[i]);
        if (work == DEV_RESTS) continue;
        any = true;
        if (!late || h->told[i] || is_present(t, i)) continue;
        h->told[i] = true;
        info("waiting for rank %d: %.0f s in %s, %s", i, now_seconds() - p->since,
             collective_name(call->primitive), dev_work_says(work));
    }
    pthread_mutex_unlock(&h->lock);
    return any;
}

// Sleeps until the channel moves, or a quarter has gone by. Whether this rank has waited in vain.
static bool channel_sleep(struct collective_threads *t, const struct collective_call *call,
                          struct patience *p) {
    struct threads_channel *ch = t->channel;
    if (t->impl.head.deadline_s <= 0) {
        pthread_cond_wait(&ch->moved, &ch->lock);
        return false;
    }
    if (pthread_cond_timedwait(&ch->moved, &ch->lock, &p->until) != ETIMEDOUT) return false;
    bool works = somebody_is_slow(t, call, p), in_vain = p->quarters <= 1 && !works && !p->worked;
    p->worked = works;
    if (p->quarters > 1) p->quarters--;
    p->until = moment_in(0.25 * t->impl.head.deadline_s);
    return in_vain;
}

// ---------------------------------------------------------------- meeting
// With the channel locked; unlocks it. The hub is marked before this rank withdraws, so that another rank
// that times out at the same moment does not report this one as missing.
static int meet_timed_out(struct collective_threads *t, const struct collective_call *call) {
    struct threads_channel *ch = t->channel;
    bool missing[REDUCE_MAX] = {false};
    char ranks[128], text[COLLECTIVE_ERROR_BYTES];
    for (int i = 0; i < t->hub->size; i++) missing[i] = !is_present(t, i);
    snprintf(text, sizeof text, "%s on channel %d (operation %llu): rank %s did not come within %g s",
             collective_name(call->primitive), t->index, (unsigned long long)t->sequence,
             collective_rank_list(ranks, sizeof ranks, missing, t->hub->size), t->impl.head.deadline_s);
    stop_run_lost(text);
    threads_hub_mark(t->hub, text);
    ch->arrived--;
    ch->slots[t->rank].present = false;
    pthread_mutex_unlock(&ch->lock);
    return threads_fail_and_abort(t, text);
}

// Called with the channel locked by the rank that completes a meeting.
static void let_everyone_through(struct threads_channel *ch, int size) {
    ch->arrived = 0;
    for (int i = 0; i < size; i++) ch->slots[i].present = false;
    atomic_fetch_add(&ch->generation, 1);
    pthread_cond_broadcast(&ch->moved);
}

// What the rank shows of a call. Its turn's copy is free: who loaded from it has come to the meeting before this one.
static void show(struct collective_threads *t, const struct collective_call *call) {
    struct threads_slot *mine = &t->channel->slots[t->rank];
    struct threads_show *s = &mine->show[t->turn];
    struct collective_plan p = collective_plan_of(call, t->impl.head.rank, t->hub->size);
    size_t room = t->channel->small_bytes, bytes = p.send_blocks * call->count * dtype_size(call->dt);
    *s = (struct threads_show){.call = *call, .sequence = t->sequence, .owner = t};
    if (!t->small) return;
    s->call.send = mine->copies + (size_t)t->turn * room;
    s->call.recv = mine->copies + 2 * room;
    if (bytes) memcpy((char *)(uintptr_t)s->call.send, call->send, bytes);
}

// *meeting: the one under way. -1 after an abort.
static int come_first(struct collective_threads *t, const struct collective_call *call, uint64_t *meeting) {
    struct threads_channel *ch = t->channel;
    struct threads_slot *mine = &ch->slots[t->rank];
    t->sequence++;
    t->turn = (int)(mine->passed & 1);
    show(t, call);
    pthread_mutex_lock(&ch->lock);
    if (atomic_load(&t->hub->aborted)) {
        pthread_mutex_unlock(&ch->lock);
        return threads_fail_aborted(t, call->primitive);
    }
    mine->present = true;
    *meeting = ch->generation;
    if (++ch->arrived == t->size) let_everyone_through(ch, t->size);
    pthread_mutex_unlock(&ch->lock);
    return 0;
}

static int sleep_first(struct collective_threads *t, const struct collective_call *call,
                       uint64_t generation) {
    struct threads_channel *ch = t->channel;
    struct threads_slot *mine = &ch->slots[t->rank];
    struct patience patience = patience_of(t);
    pthread_mutex_lock(&ch->lock);
    while (ch->generation == generation) {
        if (atomic_load(&t->hub->aborted)) {
            ch->arrived--;
            mine->present = false;
            pthread_mutex_unlock(&ch->lock);
            return threads_fail_aborted(t, call->primitive);
        }
        if (channel_sleep(t, call, &patience) && ch->generation == generation &&
            !atomic_load(&t->hub->aborted))
            return meet_timed_out(t, call);
    }
    pthread_mutex_unlock(&ch->lock);
    return 0;
}

int threads_meet_begin(struct collective_threads *t, const struct collective_call *call) {
    uint64_t meeting = 0;
    int rc = come_first(t, call, &meeting);
    if (rc == 0 && !meeting_ends_soon(t, meeting)) {
        stream_waits(call->stream, true);
        rc = sleep_first(t, call, meeting);
        stream_waits(call->stream, false);
    }
    if (rc == 0) t->channel->slots[t->rank].passed++;
    return rc;
}

int threads_meet_again(struct collective_threads *t, const struct collective_call *call, int rc) {
    struct threads_channel *ch = t->channel;
    if (rc != 0) {
        threads_hub_mark(t->hub, t->impl.error);
        atomic_store(&ch->slots[t->rank].failed, true);
    }
    pthread_mutex_lock(&ch->lock);
    uint64_t generation = ch->generation;
    if (++ch->arrived == t->size) let_everyone_through(ch, t->size);
    pthread_mutex_unlock(&ch->lock);
    if (!meeting_ends_soon(t, generation)) {
        stream_waits(call->stream, true);
        pthread_mutex_lock(&ch->lock);
        while (ch->generation == generation) pthread_cond_wait(&ch->moved, &ch->lock);
        pthread_mutex_unlock(&ch->lock);
        stream_waits(call->stream, false);
    }
    for (int i = 0; i < t->size && rc == 0; i++)
        if (atomic_load(&ch->slots[i].failed)) rc = threads_fail_aborted(t, call->primitive);
    return rc;
}

// ---------------------------------------------------------------- mail
// With the channel locked, and so at the end; not in between.
static void mail_comes_soon(struct collective_threads *t, const struct threads_mail *m,
                            enum mail_state want) {
    double since = now_seconds();
    bool came = false;
    pthread_mutex_unlock(&t->channel->lock);
    do {
        for (int i = 0; i < LOOKS && !came; i++, breathe())
            came = atomic_load_explicit(&m->state, memory_order_relaxed) == want;
    } while (!came && ask_again(t->hub, since));
    pthread_mutex_lock(&t->channel->lock);
}

// Neither the deadline nor an abort ends the wait for a mail that is being read: the reader only copies
// memory.
static int sleep_for_mail(struct collective_threads *t, struct threads_mail *m, enum mail_state want,
                          const struct collective_call *call) {
    struct patience patience = patience_of(t);
    bool late = false;
    while (m->state != want) {
        bool busy = m->state == MAIL_READING || m->state == MAIL_TAKEN;
        if (!busy && (late || atomic_load(&t->hub->aborted))) {
            if (call->primitive == COLLECTIVE_SEND && want == MAIL_TAKEN) m->state = MAIL_EMPTY;
            pthread_mutex_unlock(&t->channel->lock);
            if (atomic_load(&t->hub->aborted)) return threads_fail_aborted(t, call->primitive);
            char text[COLLECTIVE_ERROR_BYTES];
            snprintf(text, sizeof text, "%s on channel %d: rank %d did not come within %g s",
                     collective_name(call->primitive), t->index, call->peer, t->impl.head.deadline_s);
            stop_run_lost(text);
            return threads_fail_and_abort(t, text);
        }
        if (busy)
            pthread_cond_wait(&t->channel->moved, &t->channel->lock);
        else
            late = channel_sleep(t, call, &patience);
    }
    return 0;
}

int threads_mail_wait(struct collective_threads *t, struct threads_mail *m, enum mail_state want,
                      const struct collective_call *call) {
    if (m->state != want) mail_comes_soon(t, m, want);
    if (m->state == want) return 0;
    stream_waits(call->stream, true);
    int rc = sleep_for_mail(t, m, want, call);
    stream_waits(call->stream, false);
    return rc;
}

void threads_mail_set(struct collective_threads *t, struct threads_mail *m, enum mail_state state) {
    m->state = state;
    pthread_cond_broadcast(&t->channel->moved);
}
