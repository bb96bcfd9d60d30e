#include "kernels/cpu/team.h"

#include <assert.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "kernels/spans.h"

#define LINE  64  // bytes of a cache line: data of different writers lie in different lines
#define POLLS 64  // polls per reading of the clock: about a microsecond

// A number that one thread changes and another thread waits on.
struct wait_word {
    _Alignas(LINE) atomic_uint word;
    atomic_uint asleep;  // 1: the waiting thread sleeps in the kernel, or is about to
};

struct team;
struct member {
    struct wait_word work;  // counts the tasks that the member was given
    struct team *team;
    int index;
    pthread_t thread;
};

struct team {
    struct wait_word left;  // members that have not finished
    team_fn fn;
    void *arg;
    int count;
    bool running, closing;
    int size;
    struct member **members;  // (size)
};

static atomic_ullong sleeps;

// ---------------------------------------------------------------- waiting

static void pause_core(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

// Polls for TEAM_SPIN_NS. Returns whether the word differs from `value`.
static bool spin(struct wait_word *g, unsigned value) {
    int64_t end = now_ns() + TEAM_SPIN_NS;
    do {
        for (int i = 0; i < POLLS; i++) {
            if (atomic_load_explicit(&g->word, memory_order_acquire) != value) return true;
            pause_core();
        }
    } while (now_ns() < end);
    return false;
}

// Returns if the word differs from `value`, or early, so the caller checks again. No wake-up is lost: the
// waiting thread sets `asleep` before the kernel compares the word, and the other thread changes the word
// before it reads `asleep`.
static void wait_word_await(struct wait_word *g, unsigned value) {
    if (spin(g, value)) return;
    atomic_store(&g->asleep, 1);
    atomic_fetch_add_explicit(&sleeps, 1, memory_order_relaxed);
    while (atomic_load(&g->word) == value)
        syscall(SYS_futex, &g->word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
    atomic_store(&g->asleep, 0);
}

static void wait_word_wake(struct wait_word *g) {
    if (atomic_load(&g->asleep)) syscall(SYS_futex, &g->word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

uint64_t team_sleeps(void) { return atomic_load_explicit(&sleeps, memory_order_relaxed); }

// ---------------------------------------------------------------- members

static void *member_main(void *arg) {
    struct member *m = arg;
    struct team *t = m->team;
    for (unsigned done = 0;; done++) {
        while (atomic_load_explicit(&m->work.word, memory_order_acquire) == done)
            wait_word_await(&m->work, done);
        if (t->closing) return NULL;
        t->fn(t->arg, m->index, t->count);
        if (atomic_fetch_sub(&t->left.word, 1) == 1) wait_word_wake(&t->left);
    }
}

static void give(struct member *m) {
    atomic_fetch_add(&m->work.word, 1);
    wait_word_wake(&m->work);
}

static void *lines_of(size_t bytes) {
    void *p = aligned_alloc(LINE, (bytes + LINE - 1) / LINE * LINE);
    return p;
}

// Grows the team to the wanted size, or as far as possible.
static void grow(struct team *t, int wanted) {
    if (t->size >= wanted) return;
    struct member **all = realloc(t->members, (size_t)wanted * sizeof *all);
    if (!all) return;
    t->members = all;
    while (t->size < wanted) {
        struct member *m = lines_of(sizeof *m);
        if (!m) return;
        *m = (struct member){.team = t, .index = t->size + 1};
        if (pthread_create(&m->thread, NULL, member_main, m) != 0) {
            free(m);
            return;
        }
        t->members[t->size++] = m;
    }
}

// ---------------------------------------------------------------- the team of a thread

static pthread_key_t team_key;
static pthread_once_t team_once = PTHREAD_ONCE_INIT;

static void team_end(void *arg) {
    struct team *t = arg;
    t->closing = true;
    for (int i = 0; i < t->size; i++) give(t->members[i]);
    for (int i = 0; i < t->size; i++) {
        pthread_join(t->members[i]->thread, NULL);
        free(t->members[i]);
    }
    free(t->members);
    free(t);
}

static void team_init(void) {
    if (pthread_key_create(&team_key, team_end) != 0) abort();
}

// Returns NULL if there is no memory.
static struct team *own_team(void) {
    pthread_once(&team_once, team_init);
    struct team *t = pthread_getspecific(team_key);
    if (t) return t;
    if (!(t = lines_of(sizeof *t))) return NULL;
    *t = (struct team){0};
    if (pthread_setspecific(team_key, t) == 0) return t;
    free(t);
    return NULL;
}

void team_run(int threads, team_fn fn, void *arg) {
    struct team *t = threads > 1 ? own_team() : NULL;
    if (t) grow(t, threads - 1);
    if (!t || t->size == 0) {
        fn(arg, 0, 1);
        return;
    }
    assert(!t->running && "a team does one thing at a time");
    int members = t->size < threads - 1 ? t->size : threads - 1;
    t->fn = fn;
    t->arg = arg;
    t->count = members + 1;
    t->running = true;
    atomic_store(&t->left.word, (unsigned)members);
    for (int i = 0; i < members; i++) give(t->members[i]);
    fn(arg, 0, members + 1);
    for (unsigned left; (left = atomic_load_explicit(&t->left.word, memory_order_acquire));)
        wait_word_await(&t->left, left);
    t->running = false;
}
