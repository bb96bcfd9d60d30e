// The emulated device: blocks one after another, their threads as fibers. See cuda_runtime.h.
//
//     for each cluster of blocks (mostly one):  poison shared memory
//         until all threads are done:
//             for each warp:  run its ready lanes until they wait or are done; again when all of them
//                             wait in the same exchange
//             all threads of a block at the same barrier: release them; else the next block
//             all of the cluster has arrived: release those that wait for it; else report who waits where
//
// A warp runs as far as it can before the next one starts: what it writes too early, for lack of a
// barrier, overwrites what the others have yet to read. So does a block of a cluster.
#include "tests/emulation/gpu/emulation.h"

#include <cuda_runtime.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/emulation/driver/driver.h"
#include "tests/emulation/gpu/fiber.h"

#define THREADS_MAX 1024
#define LANES       32
#define CLUSTER_MAX 8   // blocks: what every device that has clusters can do
#define SHARED_MAX  32  // declarations of shared memory in a kernel
#define ALLOWED_MAX 64  // kernels that asked for more shared memory than the default

// Limits of compute capability 8.0, the smallest that is supported.
#define STATIC_SHARED_LIMIT  ((size_t)48 << 10)
#define DYNAMIC_SHARED_LIMIT ((size_t)163 << 10)
#define GRID_YZ_LIMIT        65535u

enum thread_state { READY, AT_BARRIER, IN_EXCHANGE, AT_CLUSTER, DONE };

struct thread {
    struct fiber *fiber;
    struct emu_place place;
    enum thread_state state;
    const char *file;  // where it waits; NULL in an exchange
    int line;
    unsigned block, index;    // in the cluster, in the block
    unsigned shared_seen;     // declarations passed
    unsigned exchanges_seen;  // picks the half of the warp's buffer
    unsigned waits;
    unsigned arrivals, awaited;  // at the cluster's barrier
};

// A warp's exchange: two halves, so that a fast lane's next value does not overwrite what a slow lane
// has yet to read.
struct warp {
    uint64_t value[2][LANES];
};

struct block {
    void *shared[SHARED_MAX], *dynamic;
    size_t shared_bytes[SHARED_MAX];
    unsigned shared_count;
};

struct machine {
    struct thread thread[CLUSTER_MAX * THREADS_MAX];  // block by block
    struct warp warp[CLUSTER_MAX * THREADS_MAX / LANES];
    struct block block[CLUSTER_MAX];
    unsigned warp_order[THREADS_MAX / LANES], lane_order[LANES];
    struct thread *running;
    unsigned threads, cluster;  // of a block, blocks of a cluster of this launch
    int order;
    size_t dynamic_bytes;
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
        for (unsigned i = 0; i < CLUSTER_MAX * THREADS_MAX; i++) fiber_destroy(&m->thread[i].fiber);
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
                      t->file                  ? name ? name + 1 : t->file
                      : t->state == AT_CLUSTER ? "the cluster's barrier"
                                               : "a warp exchange",
                      t->line);
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
    struct warp *w = &m->warp[t->block * (THREADS_MAX / LANES) + t->index / LANES];
    unsigned half = t->exchanges_seen++ % 2;
    if (mask != 0xffffffffu || m->threads % LANES != 0)
        machine_fail(m, "an exchange of part of a warp: not emulated", t, NULL);
    w->value[half][t->index % LANES] = value;
    wait_as(t, IN_EXCHANGE, NULL, line);
    return w->value[half];
}

void *emu_shared(size_t bytes) {
    struct machine *m = current();
    struct block *b = &m->block[m->running->block];
    unsigned k = m->running->shared_seen++;
    if (k >= SHARED_MAX) abort();
    if (k == b->shared_count) {
        b->shared[k] = malloc(bytes);
        if (!b->shared[k]) abort();
        memset(b->shared[k], 0xff, bytes);
        b->shared_bytes[k] = bytes;
        b->shared_count++;
        size_t total = m->dynamic_bytes;
        for (unsigned i = 0; i < b->shared_count; i++) total += b->shared_bytes[i];
        if (total - m->dynamic_bytes > STATIC_SHARED_LIMIT || total > DYNAMIC_SHARED_LIMIT)
            machine_fail(m, "more shared memory than a block has", m->running, NULL);
    }
    if (b->shared_bytes[k] != bytes)
        machine_fail(m, "threads declare different shared memory", m->running, NULL);
    return b->shared[k];
}

void *emu_shared_dynamic(void) { return current()->block[current()->running->block].dynamic; }

// ---------------------------------------------------------------- clusters
void emu_cluster_arrive(int line) {
    struct machine *m = current();
    struct thread *t = m->running;
    t->line = line;
    if (t->arrivals++ != t->awaited) machine_fail(m, "arrives again at the cluster's barrier", t, NULL);
}

void emu_cluster_wait(int line) {
    struct machine *m = current();
    struct thread *t = m->running;
    t->line = line;
    if (++t->awaited != t->arrivals) machine_fail(m, "waits for the cluster without having arrived", t, NULL);
    wait_as(t, AT_CLUSTER, NULL, line);
}

// The place in another block of the cluster that `own` is in this one.
const void *emu_cluster_place(const void *own, unsigned block, int line) {
    struct machine *m = current();
    struct thread *t = m->running;
    const struct block *b = &m->block[t->block], *other = &m->block[block];
    const char *p = static_cast<const char *>(own);
    bool there = false;
    t->line = line;
    for (unsigned i = 0; block < m->cluster && i < m->threads; i++)
        there |= m->thread[block * THREADS_MAX + i].state != DONE;
    for (unsigned k = 0; there && k < b->shared_count && k < other->shared_count; k++) {
        const char *begin = static_cast<const char *>(b->shared[k]);
        if (p >= begin && p < begin + b->shared_bytes[k])
            return static_cast<const char *>(other->shared[k]) + (p - begin);
    }
    machine_fail(m, "reads shared memory of a block that is not there (any more)", t, NULL);
    return own;
}

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

// All warps of the block whose threads lie from `base` on; returns as run_warp.
static unsigned run_warps(struct machine *m, unsigned base) {
    unsigned done = 0, warps = (m->threads + LANES - 1) / LANES;
    for (unsigned k = 0; k < warps && !m->failed; k++) {
        unsigned begin = m->warp_order[k] * LANES, end = begin + LANES;
        done += run_warp(m, base + begin, base + (end < m->threads ? end : m->threads));
    }
    return done;
}

static void report_divergence(struct machine *m) {
    const struct thread *a = NULL, *b = NULL;
    unsigned count = m->cluster * m->threads;
    auto thread = [&](unsigned i) { return &m->thread[i / m->threads * THREADS_MAX + i % m->threads]; };
    for (unsigned i = 0; i < count && !a; i++)
        if (thread(i)->state != DONE) a = thread(i);
    for (unsigned i = 0; a && i < count; i++) {
        const struct thread *t = thread(i);
        bool same_warp = t->index / LANES == a->index / LANES && t->block == a->block;
        if (a->state == IN_EXCHANGE && !same_warp) continue;
        if (t->state != a->state || t->line != a->line || t->file != a->file) b = t;
    }
    machine_fail(m, "threads diverge, no one can go on", a, b);
}

// Lets those go on that wait for an arrival which all of the cluster's threads have made, or have left.
static bool release_cluster(struct machine *m) {
    unsigned least = UINT_MAX;
    bool released = false;
    for (unsigned b = 0; b < m->cluster; b++)
        for (unsigned i = 0; i < m->threads; i++) {
            const struct thread *t = &m->thread[b * THREADS_MAX + i];
            if (t->state != DONE && t->arrivals < least) least = t->arrivals;
        }
    for (unsigned b = 0; b < m->cluster; b++)
        for (unsigned i = 0; i < m->threads; i++) {
            struct thread *t = &m->thread[b * THREADS_MAX + i];
            if (t->state != AT_CLUSTER || t->awaited > least) continue;
            t->state = READY;
            released = true;
        }
    return released;
}

static void prepare_block(struct machine *m, unsigned b, const struct emu_place *place) {
    struct block *own = &m->block[b];
    dim3 size = place->block;
    for (unsigned k = 0; k < own->shared_count; k++) memset(own->shared[k], 0xff, own->shared_bytes[k]);
    if (m->dynamic_bytes) memset(own->dynamic, 0xff, m->dynamic_bytes);
    for (unsigned i = 0; i < m->threads; i++) {
        struct thread *t = &m->thread[b * THREADS_MAX + i];
        struct fiber *fiber = t->fiber ? t->fiber : fiber_create(b * THREADS_MAX + i);
        if (!fiber) abort();
        *t = {};
        t->fiber = fiber;
        t->block = b;
        t->index = i;
        t->file = "its start";
        t->place = *place;
        t->place.thread_index = dim3(i % size.x, i / size.x % size.y, i / size.x / size.y);
        fiber_prepare(fiber, thread_main, t);
    }
}

// The blocks from `first` on, numbered along x, that make a cluster.
static void run_cluster(struct machine *m, dim3 grid, dim3 block, unsigned first) {
    for (unsigned b = 0; b < m->cluster; b++) {
        unsigned at = first + b;
        struct emu_place place = {grid, block, dim3(at % grid.x, at / grid.x % grid.y, at / grid.x / grid.y),
                                  dim3(0, 0, 0)};
        prepare_block(m, b, &place);
    }
    for (unsigned left = m->cluster * m->threads; left && !m->failed;) {
        for (unsigned k = 0; k < m->cluster; k++) {
            // The order of a cluster's blocks changes with that of the warps.
            unsigned begin = (k + m->warp_order[0]) % m->cluster * THREADS_MAX;
            do left -= run_warps(m, begin);
            while (!m->failed && release(m, begin, begin + m->threads, AT_BARRIER));
        }
        if (left && !m->failed && !release_cluster(m)) report_divergence(m);
    }
    for (unsigned b = 0; b < m->cluster; b++)
        for (unsigned i = 0; i < m->threads; i++) {
            unsigned waits = m->thread[b * THREADS_MAX + i].waits;
            if (waits > m->longest) m->longest = waits;
        }
    m->running = NULL;
}

// Blocks of a cluster that the launch asks for; 1: none.
static unsigned cluster_of(const cudaLaunchConfig_t *c) {
    for (unsigned i = 0; i < c->numAttrs; i++)
        if (c->attrs[i].id == cudaLaunchAttributeClusterDimension) return c->attrs[i].val.clusterDim.x;
    return 1;
}

static const char *refusal(struct machine *m, const cudaLaunchConfig_t *c, const void *kernel) {
    unsigned cluster = cluster_of(c);
    dim3 g = c->grid, b = c->block;
    uint64_t threads = (uint64_t)b.x * b.y * b.z;
    if (!threads || threads > THREADS_MAX || b.z > 64) return "a block has 1 to 1024 threads";
    if (!g.x || !g.y || !g.z || g.x > 0x7fffffffu || g.y > GRID_YZ_LIMIT || g.z > GRID_YZ_LIMIT)
        return "a grid has 1 to 2^31 - 1, 65535, 65535 blocks";
    if (!cluster || cluster > CLUSTER_MAX || g.x % cluster) return "clusters of 1 to 8 blocks fill a grid";
    size_t allowed = STATIC_SHARED_LIMIT;
    for (unsigned i = 0; i < m->allowed_count; i++)
        if (m->allowed[i] == kernel) allowed = m->allowed_bytes[i];
    return c->shared_bytes > allowed ? "more dynamic shared memory than the kernel was allowed" : NULL;
}

// A kernel on its way: attributes of its launch are the caller's and are read before.
struct launch_work {
    cudaLaunchConfig_t config;
    unsigned cluster;
    struct emu_call call;
};

// Runs on whichever thread carries out the stream's work.
static cudaError_t run_grid(const struct launch_work *l) {
    struct machine *m = current();
    dim3 g = l->config.grid, b = l->config.block;
    m->failed = false;
    m->call = l->call.thread;
    m->arg = l->call.call;
    m->threads = b.x * b.y * b.z;
    m->cluster = l->cluster;
    m->dynamic_bytes = l->config.shared_bytes;
    for (unsigned k = 0; k < m->cluster; k++) {
        m->block[k].shared_count = 0;
        m->block[k].dynamic = m->dynamic_bytes ? malloc(m->dynamic_bytes) : NULL;
        if (m->dynamic_bytes && !m->block[k].dynamic) abort();
    }
    unsigned clusters = g.x * g.y * g.z / m->cluster;
    unsigned *order = static_cast<unsigned *>(malloc(clusters * sizeof *order));
    if (!order) abort();
    set_order(order, clusters, m->order, 0);
    for (unsigned i = 0; i < clusters && !m->failed; i++) {
        set_order(m->warp_order, (m->threads + LANES - 1) / LANES, m->order, order[i] + 1);
        set_order(m->lane_order, LANES, m->order, order[i] + 1);
        run_cluster(m, g, b, order[i] * m->cluster);
    }
    for (unsigned k = 0; k < m->cluster; k++) {
        for (unsigned i = 0; i < m->block[k].shared_count; i++) free(m->block[k].shared[i]);
        free(m->block[k].dynamic);
        // Threads of a failed block are left in the middle of what they did: their stacks start afresh.
        for (unsigned i = 0; m->failed && i < m->threads; i++)
            fiber_destroy(&m->thread[k * THREADS_MAX + i].fiber);
    }
    free(order);
    return m->failed ? cudaErrorLaunchFailure : cudaSuccess;
}

// ---------------------------------------------------------------- launches
static int run_launch(void *arg, const char **why) {
    const struct launch_work *l = static_cast<const struct launch_work *>(arg);
    cudaError_t e = run_grid(l);
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
    *l = {*config, cluster_of(config), *call};
    struct emu_work work = {"a kernel",  run_launch,        drop_launch, l,
                            call->words, call->words_bytes, false,       kernel};
    return static_cast<cudaError_t>(emu_submit(config->stream, &work));
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *out, const void *kernel) {
    emu_load(-1, kernel, "a kernel's attributes");
    out->maxThreadsPerBlock = THREADS_MAX;
    return cudaSuccess;
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
