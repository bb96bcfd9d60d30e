// How the ranks of a hub wait for each other, and fail.
//
// Barriers    The first barrier of an operation ends early at the deadline (then the whole hub is aborted) or by an
//             abort. A rank that leaves it has not begun to load, and an aborted hub completes no more first barriers.
//             The later barriers of threads do not end early: all ranks are in the operation by then, and copying memory,
//             or enqueuing copies, ends by itself. So after any failure no rank returns while a peer may still read its
//             buffers. Between processes each barrier may end early: the kernel reads a peer's buffer, or reports that it
//             no longer exists.
// Waiting     A wait begins by polling: waking a sleeping thread takes longer than a small message. If every rank can
//             have a core, the wait keeps its core for as long as a small message takes. It does not if a rank that it
//             waits for last ran on that core. After that it yields the core between polls, and sleeps once the wait
//             has taken longer than waking would.
// Slow        A slow rank is not a dead one (rank_liveness.h).
#include "decentral/collective/hub.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "decentral/collective/hub_impl.h"
#include "shared/core/error.h"
#include "shared/core/segment.h"
#include "shared/core/system.h"

#define SMALL_MOST  ((size_t)64 << 10)   // the largest window of threads
#define SMALL_BYTES ((size_t)512 << 10)  // bytes of all ranks' windows of threads
// WINDOW_MOST: one window of processes, so small that its data is still in the cache when it is loaded. WINDOWS_BYTES:
// all windows; only used pages take memory.
#define WINDOW_MOST   ((size_t)512 << 10)
#define WINDOWS_BYTES ((size_t)1 << 30)
#define PAGE_BYTES    ((size_t)4096)

// ---------------------------------------------------------------- create and destroy
static size_t head_bytes(int size) {
    return segment_pages(sizeof(struct hub_memory) + (size_t)size * sizeof(struct hub_rank));
}

static size_t window_bytes(int size, bool processes) {
    size_t here = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE) / 4;
    size_t windows = (size_t)size * COLLECTIVE_CHANNELS * HUB_WINDOWS;
    size_t most = (here < WINDOWS_BYTES ? here : WINDOWS_BYTES) / windows;
    if (!processes) return SMALL_BYTES / (size_t)size < SMALL_MOST ? SMALL_BYTES / (size_t)size : SMALL_MOST;
    return most > WINDOW_MOST      ? WINDOW_MOST
           : most < 2 * PAGE_BYTES ? 2 * PAGE_BYTES
                                   : most / PAGE_BYTES * PAGE_BYTES;
}

static size_t bytes_of(int size, bool processes) {
    size_t windows = (size_t)size * COLLECTIVE_CHANNELS * HUB_WINDOWS;
    return head_bytes(size) + windows * window_bytes(size, processes);
}

size_t hub_bytes(int size) { return bytes_of(size, true); }

static struct hub *open_hub(void *memory, int size, bool processes) {
    struct hub *h = xcalloc(1, sizeof *h);
    h->size = size;
    h->processes = processes;
    h->core_each = size <= processors_given();
    h->memory = memory;
    h->windows = (char *)memory + head_bytes(size);
    h->window_bytes = window_bytes(size, processes);
    return h;
}

// Creates a hub for threads that will start.
static struct hub *hub_begin(int size) {
    if (size < 1 || size > REDUCE_MAX) {
        fail("local collectives: %d ranks asked for; 1 to %d are possible", size, REDUCE_MAX);
        return NULL;
    }
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void *memory = mmap(NULL, bytes_of(size, false), PROT_READ | PROT_WRITE, flags, -1, 0);
    if (memory == MAP_FAILED) {
        fail("local collectives of %d ranks: %s", size, strerror(errno));
        return NULL;
    }
    struct hub *h = open_hub(memory, size, false);
    h->lives = rank_liveness_open(-1, size);
    rank_liveness_share(h->lives, &h->memory->end, NULL);
    return h;
}

struct hub *hub_create(int size) {
    struct hub *h = hub_begin(size);
    for (int i = 0; i < size && h; i++) rank_liveness_set_device(h->lives, i, NULL);
    return h;
}

void hub_destroy(struct hub **hub) {
    struct hub *h = *hub;
    if (!h) return;
    rank_liveness_share(h->lives, NULL, NULL);
    if (!h->processes) rank_liveness_close(&h->lives);
    if (!h->processes) munmap(h->memory, bytes_of(h->size, false));
    free(h);
    *hub = NULL;
}

// Aborts the hub: all waits end soon, since sleeping ranks wake often.
void hub_abort(struct hub *h, const char *why) { (void)rank_liveness_end_all(h->lives, why, false); }

// ---------------------------------------------------------------- running
struct worker {
    int (*work)(void *ctx, struct hub *hub, int rank);
    void *ctx;
    struct hub *hub;
    int rank, rc;
    pthread_t thread;
};

static void *rank_main(void *arg) {
    struct worker *r = arg;
    r->rc = r->work(r->ctx, r->hub, r->rank);
    rank_liveness_set_device(r->hub->lives, r->rank, NULL);
    if (r->rc) hub_abort(r->hub, error_last());  // so that the others do not wait for this rank
    return NULL;
}

int hub_run(int size, const char *flag, int (*work)(void *ctx, struct hub *hub, int rank), void *ctx) {
    int started = 0, rc = 0;
    struct hub *hub = hub_begin(size);
    if (!hub) return -1;
    struct worker *ranks = xcalloc((unsigned long)size, sizeof *ranks);
    for (; started < size; started++) {
        struct worker *r = &ranks[started];
        *r = (struct worker){.work = work, .ctx = ctx, .hub = hub, .rank = started};
        if (pthread_create(&r->thread, NULL, rank_main, r)) break;
    }
    if (started < size) {
        rc = fail("cannot start the thread of rank %d of %d: lower %s", started, size, flag);
        hub_abort(hub, error_last());
    }
    for (int i = 0; i < started; i++) {
        pthread_join(ranks[i].thread, NULL);
        if (ranks[i].rc) rc = -1;
    }
    if (rc) error_take_over(rank_liveness_end_reason(hub->lives));  // the first failure caused the others
    free(ranks);
    hub_destroy(&hub);
    return rc;
}

// ---------------------------------------------------------------- futexes
static int call_futex(const struct hub *h, _Atomic uint32_t *wakes, int what, uint32_t value,
                      const struct timespec *t) {
    int flag = h->processes ? 0 : FUTEX_PRIVATE_FLAG;
    return (int)syscall(SYS_futex, wakes, what | flag, value, t, NULL, 0);
}

void hub_wake(const struct hub *h, struct hub_futex *b) {
    atomic_fetch_add(&b->wakes, 1);
    if (atomic_load(&b->sleepers)) call_futex(h, &b->wakes, FUTEX_WAKE, INT_MAX, NULL);
}

struct hub *hub_join(void *memory, int rank, int size, struct rank_liveness *lives) {
    struct hub *h = open_hub(memory, size, true);
    h->probe = hub_probe_value(getpid(), rank);
    h->memory->ranks[rank].probe = &h->probe;
    atomic_store(&h->memory->ranks[rank].pid, getpid());
    // Yama lets only ancestors, and a process named here, read a process: the launcher, and all processes that it
    // starts.
    prctl(PR_SET_PTRACER, (unsigned long)getppid(), 0, 0, 0);
    h->lives = lives;
    rank_liveness_share(lives, &h->memory->end, h->memory->heartbeats);
    return h;
}

// ---------------------------------------------------------------- waiting
#define KEEP_S 10e-6  // about the duration of a small message when both ranks are ready
// About twice the cost of sleeping and waking: as long as a peer takes to read some MiB. A longer poll would cost the
// other ranks more than it saves.
#define ASK_S         100e-6
#define POLLS         16        // polls between two reads of the clock
#define SLEEP_MOST_NS 50000000  // the longest sleep

enum wait_end { WAIT_OVER, WAIT_ABORTED, WAIT_FAILED };

struct wait {
    struct collective_hub *t;
    enum collective_primitive p;
    struct hub_futex *futex;
    bool (*over)(const void *arg);
    const void *arg;
    bool endless;  // the wait has no deadline, and an abort does not end it
    int peer;  // the rank that it waits for, among all ranks; -1: all that have not arrived at the barrier
    char why[256];  // receives the reason if the wait cannot succeed
};

static void pause_core(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

// Returns whether the rank is not waited for: it has arrived at the barrier, or is not in the team.
static bool is_present(const struct wait *w, int rank) {
    const struct collective_hub *t = w->t;
    const struct collective_team team = t->team->ranks;
    if (w->peer >= 0) return rank != w->peer;
    int member = collective_member_of(team, rank);
    if (rank < team.first || member >= t->size || collective_member(team, member) != rank) return true;
    uint64_t phase = atomic_load(&t->team->barrier->state) >> 32;
    return atomic_load(&hub_slot(t, member)->arrived) == phase + 1;
}

static int note_core(const struct collective_hub *t) {
    int core = 1 + sched_getcpu();
    _Atomic int *own = &hub_channel(t->hub, t->impl.head.rank, t->impl.channel)->core;
    if (atomic_load_explicit(own, memory_order_relaxed) != core)
        atomic_store_explicit(own, core, memory_order_relaxed);
    return core;
}

// Returns whether a rank that is waited for last ran on this thread's core.
static bool shares_core(const struct wait *w) {
    const struct collective_hub *t = w->t;
    int core = note_core(t);
    for (int i = 0; i < t->size; i++) {
        int rank = collective_member(t->team->ranks, i);
        if (i != t->rank && atomic_load(&hub_channel(t->hub, rank, t->impl.channel)->core) == core &&
            !is_present(w, rank))
            return true;
    }
    return false;
}

// Polls. Returns whether the wait is over within the time in which peers usually arrive.
static bool ends_soon(const struct wait *w) {
    double since = now_seconds(), waited_s;
    do {
        for (int i = 0; i < POLLS; i++, pause_core())
            if (w->over(w->arg)) return true;
        waited_s = now_seconds() - since;
        if (!w->t->hub->core_each || waited_s > KEEP_S || shares_core(w)) sched_yield();
    } while (waited_s < ASK_S);
    return false;
}

static bool is_missing(const void *wait, int rank) { return !is_present(wait, rank); }

static enum wait_end sleep_until(struct wait *w) {
    struct collective_hub *t = w->t;
    struct liveness_wait p = {.what = collective_name(w->p),
                              .since_s = now_seconds(),
                              .deadline_s = w->endless ? 0 : t->impl.head.deadline_s,
                              .missing = is_missing,
                              .ctx = w};
    for (;;) {
        uint32_t wakes = atomic_load(&w->futex->wakes);
        if (w->over(w->arg)) return WAIT_OVER;
        if (!w->endless && rank_liveness_end_reason(t->hub->lives)) return WAIT_ABORTED;
        if (rank_liveness_wait_failed(t->hub->lives, &p, w->why, sizeof w->why) && !w->over(w->arg))
            return WAIT_FAILED;
        // The kernel does not let it sleep if a wake has changed the count since it was read.
        atomic_fetch_add(&w->futex->sleepers, 1);
        call_futex(t->hub, &w->futex->wakes, FUTEX_WAIT, wakes, &(struct timespec){.tv_nsec = SLEEP_MOST_NS});
        atomic_fetch_sub(&w->futex->sleepers, 1);
    }
}

static enum wait_end await(struct wait *w) {
    if (ends_soon(w)) return WAIT_OVER;
    stream_set_waiting(w->t->stream, true);
    enum wait_end end = sleep_until(w);
    stream_set_waiting(w->t->stream, false);
    return end;
}

// ---------------------------------------------------------------- failing
int hub_fail_and_abort(struct collective_hub *t, const char *text) {
    collective_impl_fail(&t->impl, "%s", text);
    hub_abort(t->hub, text);
    return -1;
}

// Names the missing ranks. A rank that has withdrawn still counts as arrived, so that another rank that times out at
// the same time does not name it. operation: the number of the operation, or 0.
static void report_missing(struct wait *w, uint64_t operation) {
    const struct collective_hub *t = w->t;
    char text[COLLECTIVE_ERROR_BYTES], which[48] = "";
    if (operation) snprintf(which, sizeof which, " (operation %llu)", (unsigned long long)operation);
    snprintf(text, sizeof text, "%s on channel %d%s: %s", collective_name(w->p), t->impl.channel, which,
             w->why);
    (void)rank_liveness_end_all(t->hub->lives, text, true);
    collective_impl_fail(&w->t->impl, "%s", text);
}

// ---------------------------------------------------------------- barriers
struct barrier_phase {
    const struct hub_barrier *barrier;
    uint64_t number;  // the number of completed phases before this one
};

static bool phase_is_complete(const void *arg) {
    const struct barrier_phase *p = arg;
    return atomic_load_explicit(&p->barrier->state, memory_order_acquire) >> 32 != p->number;
}

// Arrives at the next phase; the last rank completes it.
static struct barrier_phase arrive(struct collective_hub *t) {
    struct hub_barrier *b = t->team->barrier;
    note_core(t);
    _Atomic uint64_t *arrived = &hub_slot(t, t->rank)->arrived;
    for (uint64_t state = atomic_load(&b->state);;) {
        uint64_t number = state >> 32, ranks = (state & UINT32_MAX) + 1;
        bool last = ranks == (uint64_t)t->size;
        atomic_store(arrived, (number & UINT32_MAX) + 1);
        if (!atomic_compare_exchange_weak(&b->state, &state,
                                          last ? (number + 1) << 32 : number << 32 | ranks))
            continue;
        if (last) hub_wake(t->hub, &b->futex);
        return (struct barrier_phase){b, number};
    }
}

// Returns 0, or -1 if the phase is complete and this rank was in it.
static int withdraw(struct collective_hub *t, struct barrier_phase p) {
    struct hub_barrier *b = t->team->barrier;
    for (uint64_t state = atomic_load(&b->state);;) {
        if (state >> 32 != p.number) return -1;
        if (atomic_compare_exchange_weak(&b->state, &state, state - 1)) return 0;
    }
}

// Waits until the phase is complete. Returns 0, or -1 after keeping the error.
static int await_phase(struct collective_hub *t, enum collective_primitive what, struct barrier_phase p) {
    struct wait w = {.t = t,
                     .p = what,
                     .futex = &t->team->barrier->futex,
                     .over = phase_is_complete,
                     .arg = &p,
                     .peer = -1};
    enum wait_end end = await(&w);
    if (end == WAIT_OVER) return 0;
    if (withdraw(t, p) != 0) return 0;
    if (end == WAIT_ABORTED) return collective_impl_fail_aborted(&t->impl, collective_name(what));
    report_missing(&w, t->sequence);
    return -1;
}

int hub_barrier_first(struct collective_hub *t, enum collective_primitive p) {
    if (rank_liveness_end_reason(t->hub->lives))
        return collective_impl_fail_aborted(&t->impl, collective_name(p));
    int rc = await_phase(t, p, arrive(t));
    if (rc == 0) hub_slot(t, t->rank)->entered++;
    return rc;
}

int hub_barrier_again(struct collective_hub *t, enum collective_primitive p, int rc) {
    if (rc != 0) {
        hub_abort(t->hub, t->impl.error);
        atomic_store(&hub_slot(t, t->rank)->failed, true);
    }
    struct barrier_phase phase = arrive(t);
    if (t->hub->processes) {
        if (await_phase(t, p, phase) != 0) rc = -1;
    } else {
        hub_wait_on(t, &t->team->barrier->futex, phase_is_complete, &phase);
    }
    for (int i = 0; i < t->size && rc == 0; i++)
        if (atomic_load(&hub_slot(t, i)->failed))
            rc = collective_impl_fail_aborted(&t->impl, collective_name(p));
    return rc;
}

// ---------------------------------------------------------------- other waits
int hub_wait_for(struct collective_hub *t, struct hub_futex *futex, bool (*over)(const void *arg),
                 const void *arg, enum collective_primitive p, int peer) {
    struct wait w = {.t = t, .p = p, .futex = futex, .over = over, .arg = arg, .peer = peer};
    enum wait_end end = await(&w);
    if (end == WAIT_FAILED) report_missing(&w, 0);
    if (end == WAIT_ABORTED) collective_impl_fail_aborted(&t->impl, collective_name(p));
    return end == WAIT_OVER ? 0 : -1;
}

void hub_wait_on(struct collective_hub *t, struct hub_futex *futex, bool (*over)(const void *arg),
                 const void *arg) {
    struct wait w = {.t = t, .futex = futex, .over = over, .arg = arg, .endless = true};
    (void)await(&w);
}
