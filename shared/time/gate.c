#include "shared/time/gate.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "kernels/spans.h"
#include "shared/core/error.h"

#define CHECK_NS INT64_C(200000000)  // a waiting rank checks this often whether it was asked to stop

static_assert(sizeof(struct gate_head) == 128 && sizeof(struct gate_record) == 128, "the file's layout");

static struct {
    pthread_once_t once;
    struct gate_head *head;  // NULL: no gate
    char why[160];           // why the gate cannot be used; "": it can
} own = {.once = PTHREAD_ONCE_INIT};

// Maps the file. Returns NULL, or why the file is no gate.
static const char *map_file(const char *path) {
    struct stat st;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return strerror(errno);
    const char *why = NULL;
    void *at = MAP_FAILED;
    if (fstat(fd, &st))
        why = strerror(errno);
    else if (!S_ISREG(st.st_mode) || st.st_size < (off_t)sizeof(struct gate_head))
        why = "it is too short for a gate";
    else if ((at = mmap(NULL, (size_t)st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)) == MAP_FAILED)
        why = strerror(errno);
    close(fd);
    if (why) return why;
    struct gate_head *head = at;
    int64_t room = ((int64_t)st.st_size - (int64_t)sizeof *head) / (int64_t)sizeof(struct gate_record);
    if (memcmp(head->magic, GATE_MAGIC, sizeof head->magic) != 0)
        why = "it is not a gate's file: it does not begin with " GATE_MAGIC;
    else if (head->records < 1 || head->records > room)
        why = "it is too short for the number of records in its head";
    if (why)
        munmap(at, (size_t)st.st_size);
    else
        own.head = head;
    return why;
}

static void map_once(void) {
    const char *path = getenv(GATE_VARIABLE);
    const char *why = path && *path ? map_file(path) : NULL;
    if (why) snprintf(own.why, sizeof own.why, "%s", why);
}

static struct gate_head *head(void) {
    pthread_once(&own.once, map_once);
    return own.head;
}

static void wait_for_change(struct gate_head *h, uint32_t changes) {
    struct timespec most = {.tv_sec = CHECK_NS / 1000000000, .tv_nsec = CHECK_NS % 1000000000};
    syscall(SYS_futex, &h->changes, FUTEX_WAIT, changes, &most, NULL, 0);
}

// ---------------------------------------------------------------- a rank
int gate_join(struct gate_rank *g, const struct gate_facts *f) {
    *g = (struct gate_rank){.facts = *f};
    struct gate_head *h = head();
    if (own.why[0])
        return fail(
            "%s=%s: %s; experiments/compare.py sets this variable: unset it to train without a comparison",
            GATE_VARIABLE, getenv(GATE_VARIABLE), own.why);
    if (!h) return 0;
    if (f->rank >= h->records)
        return fail(
            "%s=%s: the file has records for ranks 0 to %lld, and this is rank %d: unset the variable to train without "
            "a comparison",
            GATE_VARIABLE, getenv(GATE_VARIABLE), (long long)h->records - 1, f->rank);
    g->record = (struct gate_record *)(h + 1) + f->rank;
    atomic_store(&h->unit, f->unit);
    atomic_store(&h->total, f->total);
    atomic_store(&h->pace, f->pace);
    atomic_store(&h->ranks, f->ranks);
    atomic_fetch_add(&h->taken, 1);
    return 0;
}

int64_t gate_limit(void) { return atomic_load(&head()->limit); }

int gate_wait(struct gate_rank *g, int64_t sample) {
    struct gate_head *h = head();
    struct gate_record *s = g->record;
    if (!s) return 0;
    for (;;) {
        uint32_t changes = atomic_load(&h->changes);
        int64_t limit = atomic_load(&h->limit);
        if (sample < limit) break;
        atomic_store(&s->waits, limit + 1);
        // All ranks of a run that was asked to stop must reach the step in which they exchange this request.
        if (g->facts.stop && *g->facts.stop) {
            atomic_store(&h->limit, INT64_MAX);
            atomic_fetch_add(&h->changes, 1);
            syscall(SYS_futex, &h->changes, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
            break;
        }
        if (h->holder > 0 && kill((pid_t)h->holder, 0) != 0 && errno == ESRCH)
            return fail(
                "the comparison that alternates this run with others (process %lld) has ended, so this run ends, too",
                (long long)h->holder);
        wait_for_change(h, changes);
    }
    g->passed = true;
    atomic_store(&s->passed_ns, now_ns());
    atomic_store(&s->waits, 0);
    return 0;
}

void gate_step(struct gate_rank *g, int64_t tokens, int64_t ended_ns) {
    struct gate_record *s = g->record;
    if (!s) return;
    atomic_fetch_add(&s->tokens, tokens);
    if (g->passed) {
        atomic_store(&s->first_ns, ended_ns);
        atomic_store(&s->first_tokens, atomic_load(&s->tokens));
        g->passed = false;
    }
    atomic_store(&s->last_ns, ended_ns);
    atomic_fetch_add(&s->steps, 1);
    atomic_fetch_add(&s->done, g->facts.own);
}

// ---------------------------------------------------------------- other code in a process of the job
int64_t gate_held_ns(void) {
    struct gate_head *h = head();
    if (!h) return 0;
    int64_t since = atomic_load(&h->since);
    return atomic_load(&h->held) + (since ? now_ns() - since : 0);
}

void gate_sleep(void) {
    struct gate_head *h = head();
    if (!h) return;
    uint32_t changes = atomic_load(&h->changes);
    if (atomic_load(&h->since)) wait_for_change(h, changes);
}
