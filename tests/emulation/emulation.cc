// The emulated device: blocks one after another, their threads as fibers. See cuda_runtime.h.
//
//     for each block:  poison shared memory
//         until all threads are done:
//             for each warp:  run its ready lanes until they wait or are done; again when all of them
//                             wait in the same exchange
//             all threads at the same barrier: release them; else report who waits where
//
// A warp runs as far as it can before the next one starts: what it writes too early, for lack of a
// barrier, overwrites what the others have yet to read.
#include "tests/emulation/emulation.h"

#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/emulation/driver.h"
#include "tests/emulation/fiber.h"

#define THREADS_MAX 1024
#define LANES       32
#define SHARED_MAX  32  // declarations of shared memory in a kernel
#define ALLOWED_MAX 64  // kernels that asked for more shared memory than the default

// Limits of compute capability 8.0, the smallest that is supported.
#define STATIC_SHARED_LIMIT  ((size_t)48 << 10)
#define DYNAMIC_SHARED_LIMIT ((size_t)163 << 10)
#define GRID_YZ_LIMIT        65535u

enum thread_state { READY, AT_BARRIER, IN_EXCHANGE, DONE };

struct thread {
    struct fiber *fiber;
    struct emu_place place;
    enum thread_state state;
    const char *file;  // where it waits; NULL in an exchange
    int line;
    unsigned index;           // in the block
    unsigned shared_seen;     // declarations passed
    unsigned exchanges_seen;  // picks the half of the warp's buffer
    unsigned waits;
};

// A warp's exchange: two halves, so that a fast lane's next value does not overwrite what a slow lane
// has yet to read.
struct warp {
    uint64_t value[2][LANES];
};

struct machine {
    struct thread thread[THREADS_MAX];
    struct warp warp[THREADS_MAX / LANES];
    unsigned warp_order[THREADS_MAX / LANES], lane_order[LANES];
    struct thread *running;
    unsigned threads;  // of a block of this launch
    int order;
    void *shared[SHARED_MAX], *dynamic;
    size_t shared_bytes[SHARED_MAX], dynamic_bytes;
    unsigned shared_count;
    void (*call)(void *);
    void *arg;
    const void *allowed[ALLOWED_MAX];
    size_t allowed_bytes[ALLOWED_MAX];
    unsigned allowed_count, longest;
    bool failed;
    char why[256];
};

// The machine of the calling thread.
struct owner {
    struct machine *m = nullptr;
    ~owner() {
        if (!m) return;
        for (unsigned i = 0; i < THREADS_MAX; i++) fiber_destroy(&m->thread[i].fiber);
        free(m);
    }
};

static struct machine *current(void) {
    static thread_local struct owner own;
    if (!own.m) {
        own.m = static_cast<struct machine *>(calloc(1, sizeof *own.m));
        if (!own.m) abort();
        own.m->order = 1;
    }
    return own.m;
}

static void machine_fail(struct machine *m, const char *what, const struct thread *a,
                         const struct thread *b) {
    if (m->failed) return;
    m->failed = true;
    dim3 block = a ? a->place.block_index : dim3(0, 0, 0);
    int n = snprintf(m->why, sizeof m->why, "block (%u,%u,%u): %s", block.x, block.y, block.z, what);
    for (const struct thread *t : {a, b}) {
        if (!t || n >= (int)sizeof m->why) continue;
        const char *name = t->file ? strrchr(t->file, '/') : NULL;
        n += snprintf(m->why + n, sizeof m->why - (size_t)n, "; thread %u %s %s line %d", t->index,
                      t->state == DONE ? "has left after" : "is at",
                      t->file ? name ? name + 1 : t->file : "a warp exchange", t->line);
    }
}

extern "C" void emu_set_order(int order) { current()->order = order; }

extern "C" unsigned emu_longest(void) {
    struct machine *m = current();
    unsigned longest = m->longest;
    m->longest = 0;
    return longest;
}

// ---------------------------------------------------------------- what threads call
const struct emu_place *emu_here(void) { return &current()->running->place; }
int emu_lane(void) { return (int)(current()->running->index % LANES); }

static void wait_as(struct thread *t, enum thread_state state, const char *file, int line) {
    t->state = state;
    t->file = file;
    t->line = line;
    t->waits++;
    fiber_leave(t->fiber);
}

void emu_barrier(const char *file, int line) { wait_as(current()->running, AT_BARRIER, file, line); }

const uint64_t *emu_exchange(unsigned mask, uint64_t value, int line) {
    struct machine *m = current();
    struct thread *t = m->running;
    struct warp *w = &m->warp[t->index / LANES];
    unsigned half = t->exchanges_seen++ % 2;
    if (mask != 0xffffffffu || m->threads % LANES != 0)
        machine_fail(m, "an exchange of part of a warp: not emulated", t, NULL);
    w->value[half][t->index % LANES] = value;
    wait_as(t, IN_EXCHANGE, NULL, line);
    return w->value[half];
}

void *emu_shared(size_t bytes) {
    struct machine *m = current();
    unsigned k = m->running->shared_seen++;
    if (k >= SHARED_MAX) abort();
    if (k == m->shared_count) {
        m->shared[k] = malloc(bytes);
        if (!m->shared[k]) abort();
        memset(m->shared[k], 0xff, bytes);
        m->shared_bytes[k] = bytes;
        m->shared_count++;
        size_t total = m->dynamic_bytes;
        for (unsigned i = 0; i < m->shared_count; i++) total += m->shared_bytes[i];
        if (total - m->dynamic_bytes > STATIC_SHARED_LIMIT || total > DYNAMIC_SHARED_LIMIT)
            machine_fail(m, "more shared memory than a block has", m->running, NULL);
    }
    if (m->shared_bytes[k] != bytes)
        machine_fail(m, "threads declare different shared memory", m->running, NULL);
    return m->shared[k];
}

void *emu_shared_dynamic(void) { return current()->dynamic; }

// ---------------------------------------------------------------- scheduling
static void thread_main(void *arg) {
    struct thread *t = static_cast<struct thread *>(arg);
    struct machine *m = current();
    m->call(m->arg);
    wait_as(t, DONE, t->file, t->line);
}

// Fisher-Yates on (seed, i) by a multiplicative hash: any order will do, the same every time.
static unsigned shuffled(uint64_t seed, unsigned i) {
    uint64_t z = (seed + i) * 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 29) * 0xbf58476d1ce4e5b9u;
    return (unsigned)(z >> 32) % (i + 1);
}

static void set_order(unsigned *of, unsigned n, int order, uint64_t salt) {
    for (unsigned i = 0; i < n; i++) of[i] = order == 2 ? n - 1 - i : i;
    for (unsigned i = n; order > 2 && i-- > 1;) {
        unsigned j = shuffled((uint64_t)order * 977 + salt * 131, i), swap = of[i];
        of[i] = of[j];
        of[j] = swap;
    }
}

// Whether all threads of [begin, end) wait as the first does; then they are ready again.
static bool release(struct machine *m, unsigned begin, unsigned end, enum thread_state state) {
    struct thread *t = m->thread;
    for (unsigned i = begin; i < end; i++)
        if (t[i].state != state || t[i].line != t[begin].line || t[i].file != t[begin].file) return false;
    for (unsigned i = begin; i < end; i++) t[i].state = READY;
    return true;
}

// Runs a warp until each of its lanes is done or waits for another warp, or for nobody. Returns how
// many became done.
static unsigned run_warp(struct machine *m, unsigned begin, unsigned end) {
    unsigned done = 0;
    do {
        for (unsigned k = 0; k < LANES && !m->failed; k++) {
            unsigned i = begin + m->lane_order[k];
            if (i >= end || m->thread[i].state != READY) continue;
            m->running = &m->thread[i];
            fiber_enter(m->thread[i].fiber);
            done += m->thread[i].state == DONE;
        }
    } while (!m->failed && release(m, begin, end, IN_EXCHANGE));
    return done;
}

static void report_divergence(struct machine *m) {
    const struct thread *a = NULL, *b = NULL;
    for (unsigned i = 0; i < m->threads; i++) {
        const struct thread *t = &m->thread[i];
        if (t->state != DONE && !a) a = t;
    }
    for (unsigned i = 0; a && i < m->threads; i++) {
        const struct thread *t = &m->thread[i];
        bool same_warp = t->index / LANES == a->index / LANES;
        if (a->state == IN_EXCHANGE && !same_warp) continue;
        if (t->state != a->state || t->line != a->line || t->file != a->file) b = t;
    }
    machine_fail(m, "threads diverge, no one can go on", a, b);
}

static void run_block(struct machine *m, dim3 grid, dim3 block, dim3 at) {
    for (unsigned k = 0; k < m->shared_count; k++) memset(m->shared[k], 0xff, m->shared_bytes[k]);
    if (m->dynamic_bytes) memset(m->dynamic, 0xff, m->dynamic_bytes);
    for (unsigned i = 0; i < m->threads; i++) {
        struct thread *t = &m->thread[i];
        struct fiber *fiber = t->fiber ? t->fiber : fiber_create(i);
        if (!fiber) abort();
        *t = {};
        t->fiber = fiber;
        t->index = i;
        t->file = "its start";
        t->place = {grid, block, at, dim3(i % block.x, i / block.x % block.y, i / block.x / block.y)};
        fiber_prepare(fiber, thread_main, t);
    }
    unsigned warps = (m->threads + LANES - 1) / LANES;
    for (unsigned left = m->threads; left && !m->failed;) {
        for (unsigned k = 0; k < warps && !m->failed; k++) {
            unsigned begin = m->warp_order[k] * LANES, end = begin + LANES;
            left -= run_warp(m, begin, end < m->threads ? end : m->threads);
        }
        if (left && !m->failed && !release(m, 0, m->threads, AT_BARRIER)) report_divergence(m);
    }
    for (unsigned i = 0; i < m->threads; i++)
        if (m->thread[i].waits > m->longest) m->longest = m->thread[i].waits;
    m->running = NULL;
}

static const char *refusal(struct machine *m, const cudaLaunchConfig_t *c, const void *kernel) {
    dim3 g = c->grid, b = c->block;
    uint64_t threads = (uint64_t)b.x * b.y * b.z;
    if (!threads || threads > THREADS_MAX || b.z > 64) return "a block has 1 to 1024 threads";
    if (!g.x || !g.y || !g.z || g.x > 0x7fffffffu || g.y > GRID_YZ_LIMIT || g.z > GRID_YZ_LIMIT)
        return "a grid has 1 to 2^31 - 1, 65535, 65535 blocks";
    size_t allowed = STATIC_SHARED_LIMIT;
    for (unsigned i = 0; i < m->allowed_count; i++)
        if (m->allowed[i] == kernel) allowed = m->allowed_bytes[i];
    return c->shared_bytes > allowed ? "more dynamic shared memory than the kernel was allowed" : NULL;
}

// Runs on whichever thread carries out the stream's work.
static cudaError_t run_grid(const cudaLaunchConfig_t *config, const struct emu_call *call) {
    struct machine *m = current();
    dim3 g = config->grid, b = config->block;
    m->failed = false;
    m->call = call->thread;
    m->arg = call->call;
    m->threads = b.x * b.y * b.z;
    m->shared_count = 0;
    m->dynamic_bytes = config->shared_bytes;
    m->dynamic = m->dynamic_bytes ? malloc(m->dynamic_bytes) : NULL;
    unsigned blocks = g.x * g.y * g.z;
    unsigned *block_order = static_cast<unsigned *>(malloc(blocks * sizeof *block_order));
    if (!block_order || (m->dynamic_bytes && !m->dynamic)) abort();
    set_order(block_order, blocks, m->order, 0);
    for (unsigned i = 0; i < blocks && !m->failed; i++) {
        unsigned at = block_order[i];
        set_order(m->warp_order, (m->threads + LANES - 1) / LANES, m->order, at + 1);
        set_order(m->lane_order, LANES, m->order, at + 1);
        run_block(m, g, b, dim3(at % g.x, at / g.x % g.y, at / g.x / g.y));
    }
    for (unsigned k = 0; k < m->shared_count; k++) free(m->shared[k]);
    // Threads of a failed block are left in the middle of what they did: their stacks start afresh.
    for (unsigned i = 0; m->failed && i < m->threads; i++) fiber_destroy(&m->thread[i].fiber);
    free(m->dynamic);
    free(block_order);
    return m->failed ? cudaErrorLaunchFailure : cudaSuccess;
}

// ---------------------------------------------------------------- launches
struct launch_work {
    cudaLaunchConfig_t config;
    struct emu_call call;
};

static int run_launch(void *arg, const char **why) {
    const struct launch_work *l = static_cast<const struct launch_work *>(arg);
    cudaError_t e = run_grid(&l->config, &l->call);
    if (e != cudaSuccess) *why = current()->why;
    return e;
}

static void drop_launch(void *arg) {
    struct launch_work *l = static_cast<struct launch_work *>(arg);
    free(l->call.call);
    free(l);
}

cudaError_t emu_launch(const cudaLaunchConfig_t *config, const void *kernel, const struct emu_call *call) {
    const char *why = refusal(current(), config, kernel);
    if (why) {
        emu_note(why);
        free(call->call);
        return cudaErrorInvalidConfiguration;
    }
    struct launch_work *l = static_cast<struct launch_work *>(malloc(sizeof *l));
    if (!l) abort();
    *l = {*config, *call};
    struct emu_work work = {"a kernel", run_launch, drop_launch, l, call->words, call->words_bytes, false};
    return static_cast<cudaError_t>(emu_submit(config->stream, &work));
}

// A kernel's own, in CUDA; here of the thread that launches it.
cudaError_t cudaFuncSetAttribute(const void *kernel, cudaFuncAttribute, int value) {
    struct machine *m = current();
    if (value < 0 || (size_t)value > DYNAMIC_SHARED_LIMIT) {
        emu_note("more shared memory than a block can have");
        return cudaErrorInvalidConfiguration;
    }
    unsigned i = 0;
    while (i < m->allowed_count && m->allowed[i] != kernel) i++;
    if (i == ALLOWED_MAX) abort();
    if (i == m->allowed_count) m->allowed_count++;
    m->allowed[i] = kernel;
    m->allowed_bytes[i] = (size_t)value;
    return cudaSuccess;
}
