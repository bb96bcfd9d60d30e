// Host memory and the two host backends, cpu (fast) and ref (the oracle), which differ only in their tables of
// operations.
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kernels/backend_impl.h"
#include "kernels/cpu/cpu.h"
#include "kernels/queue/queue.h"

#define HUGE_PAGE_BYTES ((size_t)2 << 20)

struct host_device {
    struct device head;
    const op_fn *ops;  // (OP_COUNT)
};

// ---------------------------------------------------------------- opening and closing

static int host_open(struct device **out, const struct device_options *opt, const struct backend *b,
                     const op_fn *ops) {
    struct host_device *d = calloc(1, sizeof *d);
    if (!d) return -1;
    device_init(&d->head, b, opt);
    d->ops = ops;
    *out = &d->head;
    return 0;
}

static int cpu_open(struct device **out, const struct device_options *opt) {
    enum cpu_kernel kernel = CPU_KERNEL_FMA;
    const char *why;
    if (cpu_kernel_resolve(opt ? opt->kernel : CPU_KERNEL_AUTO, &kernel, &why) != 0) return -1;
    return host_open(out, opt, &cpu_backend, cpu_ops_by(kernel));
}

static int ref_open(struct device **out, const struct device_options *opt) {
    return host_open(out, opt, &ref_backend, ref_ops);
}

static void host_close(struct device *head) {
    queues_free(head);
    device_fini(head);
    free(head);
}

// ---------------------------------------------------------------- streams: queues whose thread does the work

static int run_slot(struct queue *q, const struct slot *slot) {
    const struct host_device *d = (const struct host_device *)q->head.dev;
    const char *why = NULL;
    if (slot->kind == SLOT_COPY) {
        memcpy(slot->copy.dst, slot->copy.src, slot->copy.bytes);
        return 0;
    }
    assert(slot->kind == SLOT_OP);
    if (d->ops[slot->op.op](d->head.threads, slot->op.args, &why) == 0) return 0;
    device_fail(q->head.dev, "stream %s: %s failed: %s", q->name, slot_name(slot),
                why ? why : "no reason given");
    return -1;
}

static struct stream *host_stream_create(struct device *d, const char *name) {
    static const struct queue_ops ops = {.thread = queue_run, .run = run_slot};
    struct queue *q = calloc(1, sizeof *q);
    if (!q) return NULL;
    queue_init(q, d, name, &ops);
    if (queue_start(q) == 0) return &q->head;
    device_fail(d, "stream %s: cannot start its thread; raise the limit of threads (ulimit -u)", q->name);
    free(q);
    return NULL;
}

static void host_stream_destroy(struct stream *s) { queue_stop((struct queue *)s); }

// ---------------------------------------------------------------- memory

// Large buffers get 2 MiB pages if the kernel allows it; without them, streaming operations spend a third of
// their time in TLB misses. All pages are touched here, so that no step pays for page faults and the process's
// resident size equals the ledger's.
static void *host_alloc(struct device *d, size_t bytes) {
    (void)d;
    // Every page is written below. Without this check, a request beyond the machine's memory would get the
    // process killed.
    long pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
    if (pages > 0 && page_bytes > 0 && bytes / (size_t)page_bytes >= (size_t)pages) return NULL;
    bool large = bytes >= 2 * HUGE_PAGE_BYTES;
    void *p;
    if (posix_memalign(&p, large ? HUGE_PAGE_BYTES : DEV_ALIGN, bytes) != 0) return NULL;
    if (large) madvise(p, bytes / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES, MADV_HUGEPAGE);
    memset(p, 0, bytes);
    return p;
}

static void host_free(struct device *d, void *p, size_t bytes) {
    (void)d;
    (void)bytes;
    free(p);
}

static int one_device(void) { return 1; }

static int host_reach(struct device *d, struct device *peer) {
    (void)d;
    (void)peer;
    return 0;
}

// ---------------------------------------------------------------- the tables

#define HOST_BACKEND(backend_name, open_fn)                                                    \
    {                                                                                          \
        .name = backend_name, .host_memory = true, .devices = one_device, .open = open_fn,     \
        .close = host_close, .alloc = host_alloc, .free = host_free, .host_alloc = host_alloc, \
        .host_free = host_free, .reach = host_reach, .stream_create = host_stream_create,      \
        .stream_destroy = host_stream_destroy, .launch = queue_launch, .copy = queue_copy,     \
        .event_create = queue_event_create, .event_destroy = queue_event_destroy,              \
    }

const struct backend cpu_backend = HOST_BACKEND("cpu", cpu_open);
const struct backend ref_backend = HOST_BACKEND("ref", ref_open);
