// Memory of the emulated devices: who may touch which address, and when.
//
// Each device has an address range. Live memory in it is accessible only while a kernel or a copy runs (on any
// device: a counter, the first one in opens, the last one out closes); a host that touches it at another time
// ends with a message.
//
//     | gap | allocation | gap | freed | gap | allocation | gap | .. never used ..
//           ^ begins in its first page, ends with its last: a step beyond its end is a step into the gap
//
// Gaps and freed memory are pages of an empty file: touching them is SIGBUS whatever their protection is, so
// that one mprotect of the used range opens and closes everything. Freed addresses are not used again. New
// memory is pages of a file of poison.
#include <execinfo.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/emulation/driver/driver_impl.h"

#define RANGE_BYTES  ((size_t)64 << 30)
#define PAGE_BYTES   ((size_t)4096)
#define POISON       0xee
#define POISON_BYTES ((size_t)2 << 20)
#define FRAMES       32

struct allocation {
    char *begin, *end, *pages;  // pages: where its first page begins
    bool live;
    bool registered;  // pinned, but mapped by whoever registered it
};

// Allocations lie in the order of their addresses, which is that of their times.
struct range {
    char *base, *top;  // [base, top) has been used
    struct allocation *all;
    size_t count, room, used_bytes;
};

static struct {
    pthread_mutex_t lock;
    int devices, empty_file, poison_file;
    int inside;  // threads that may touch device memory
    size_t limit_bytes;
    struct range range[DEVICES_MAX];
    struct range pinned;
    struct sigaction before[2];
} memory = {.lock = PTHREAD_MUTEX_INITIALIZER};

static _Thread_local int worker __attribute__((tls_model("initial-exec"))) = -1;

void memory_set_worker(int device) { worker = device; }

static void must(bool ok, const char *what) {
    if (ok) return;
    perror(what);
    abort();
}

static size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

// The last allocation that begins at or before p; NULL when there is none.
static struct allocation *find(struct range *r, const void *p) {
    size_t low = 0, high = r->count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (r->all[middle].begin <= (const char *)p)
            low = middle + 1;
        else
            high = middle;
    }
    return low ? &r->all[low - 1] : NULL;
}

// ---------------------------------------------------------------- faults

static void put(const char *text) {
    if (write(2, text, strlen(text)) < 0) _exit(1);
}

static void put_number(uintptr_t n, unsigned base) {
    char text[32];
    int at = sizeof text - 1;
    text[at] = 0;
    do text[--at] = "0123456789abcdef"[n % base];
    while ((n /= base) != 0);
    put(text + at);
}

// Says who touched what, then lets the signal kill. A fault outside of device memory goes to the previous
// handler.
static void on_fault(int signal_number, siginfo_t *info, void *context) {
    (void)context;
    const char *at = info->si_addr;
    int device = 0;
    while (device < memory.devices &&
           !(memory.range[device].base <= at && at < memory.range[device].base + RANGE_BYTES))
        device++;
    if (device < memory.devices) {
        struct allocation *a = find(&memory.range[device], at);
        bool live = a && a->live && at < a->end;
        put("emulated CUDA: ");
        if (worker < 0) {
            put("the host touched device memory at 0x");
        } else {
            put("work of device ");
            put_number((uintptr_t)worker, 10);
            put(" touched the address 0x");
        }
        put_number((uintptr_t)at, 16);
        put(" of device ");
        put_number((uintptr_t)device, 10);
        put(live ? "\n" : ", which is freed or beyond an allocation\n");
        void *frames[FRAMES];
        backtrace_symbols_fd(frames, backtrace(frames, FRAMES), 2);
        signal(signal_number, SIG_DFL);
    } else {
        sigaction(signal_number, &memory.before[signal_number == SIGBUS], NULL);
    }
    // The instruction is tried again and meets the other handler.
}

static void catch_faults(void) {
    struct sigaction a = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER};
    void *frames[2];
    backtrace(frames, 2);  // loads what it needs, which a handler must not
    sigaction(SIGSEGV, &a, &memory.before[0]);
    sigaction(SIGBUS, &a, &memory.before[1]);
}

// ---------------------------------------------------------------- the ranges

static int make_file(const char *name, size_t bytes) {
    int file = memfd_create(name, MFD_CLOEXEC);
    must(file >= 0, "memfd_create");
    char page[PAGE_BYTES];
    memset(page, POISON, sizeof page);
    for (size_t done = 0; done < bytes; done += sizeof page)
        must(write(file, page, sizeof page) == (ssize_t)sizeof page, "the emulated memory");
    return file;
}

// Addresses of nothing; the file's offset goes with the address, so that neighbours become one mapping.
static char *map_nothing(const struct range *r, char *at, size_t bytes) {
    void *p = mmap(at, bytes, PROT_NONE, MAP_PRIVATE | MAP_NORESERVE | (at ? MAP_FIXED : 0),
                   memory.empty_file, at ? at - r->base : 0);
    must(p != MAP_FAILED, "the address range of an emulated device");
    return p;
}

void memory_start(int devices, size_t limit_bytes) {
    memory.devices = devices;
    memory.limit_bytes = limit_bytes;
    memory.empty_file = make_file("emulated gap", 0);
    memory.poison_file = make_file("emulated poison", POISON_BYTES);
    for (int d = 0; d < devices; d++) {
        struct range *r = &memory.range[d];
        r->base = map_nothing(r, NULL, RANGE_BYTES);
        r->top = r->base + PAGE_BYTES;
    }
    catch_faults();
}

static void set_protection(int protection) {
    for (int d = 0; d < memory.devices; d++) {
        struct range *r = &memory.range[d];
        must(mprotect(r->base, (size_t)(r->top - r->base), protection) == 0, "mprotect");
    }
}

void emu_memory_open(void) {
    pthread_mutex_lock(&memory.lock);
    if (memory.inside++ == 0) set_protection(PROT_READ | PROT_WRITE);
    pthread_mutex_unlock(&memory.lock);
}

void emu_memory_close(void) {
    pthread_mutex_lock(&memory.lock);
    if (--memory.inside == 0) set_protection(PROT_NONE);
    pthread_mutex_unlock(&memory.lock);
}

// ---------------------------------------------------------------- allocations

static struct allocation *append(struct range *r) {
    if (r->count == r->room) {
        r->room = r->room ? 2 * r->room : 64;
        r->all = realloc(r->all, r->room * sizeof *r->all);
        must(r->all != NULL, "realloc");
    }
    return &r->all[r->count++];
}

void *memory_alloc(int device, size_t bytes) {
    struct range *r = &memory.range[device];
    size_t rounded = round_up(bytes, EMU_ALIGN), pages_bytes = round_up(rounded, PAGE_BYTES);
    char *p = NULL;
    pthread_mutex_lock(&memory.lock);
    bool fits = rounded <= memory.limit_bytes - r->used_bytes &&
                pages_bytes + PAGE_BYTES <= RANGE_BYTES - (size_t)(r->top - r->base);
    if (fits) {
        char *pages = r->top;
        int protection = memory.inside ? PROT_READ | PROT_WRITE : PROT_NONE;
        for (size_t done = 0; done < pages_bytes; done += POISON_BYTES) {
            size_t left = pages_bytes - done;
            must(mmap(pages + done, left < POISON_BYTES ? left : POISON_BYTES, protection,
                      MAP_PRIVATE | MAP_NORESERVE | MAP_FIXED, memory.poison_file, 0) != MAP_FAILED,
                 "emulated device memory");
        }
        p = pages + pages_bytes - rounded;
        *append(r) = (struct allocation){p, p + bytes, pages, .live = true};
        r->top = pages + pages_bytes + PAGE_BYTES;
        r->used_bytes += rounded;
    }
    pthread_mutex_unlock(&memory.lock);
    return p;
}

int memory_free(void *p) {
    int rc = -1;
    pthread_mutex_lock(&memory.lock);
    for (int d = 0; d < memory.devices && rc != 0; d++) {
        struct range *r = &memory.range[d];
        struct allocation *a = find(r, p);
        if (!a || !a->live || a->begin != p) continue;
        size_t rounded = round_up((size_t)(a->end - a->begin), EMU_ALIGN);
        map_nothing(r, a->pages, round_up(rounded, PAGE_BYTES));
        a->live = false;
        r->used_bytes -= rounded;
        rc = 0;
    }
    pthread_mutex_unlock(&memory.lock);
    return rc;
}

size_t memory_used(int device) {
    pthread_mutex_lock(&memory.lock);
    size_t bytes = memory.range[device].used_bytes;
    pthread_mutex_unlock(&memory.lock);
    return bytes;
}

// ---------------------------------------------------------------- pinned host memory

void *memory_pin(size_t bytes) {
    size_t pages_bytes = round_up(bytes, PAGE_BYTES);
    void *p = mmap(NULL, pages_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return NULL;
    memset(p, POISON, bytes);
    pthread_mutex_lock(&memory.lock);
    *append(&memory.pinned) = (struct allocation){p, (char *)p + bytes, p, .live = true};
    pthread_mutex_unlock(&memory.lock);
    return p;
}

// With the lock held: pinned memory comes from wherever the system gives it, in no order.
// An address may be the end of one piece and the begin of the next.
static struct allocation *find_pinned(const void *p) {
    struct allocation *ends = NULL;
    for (size_t i = 0; i < memory.pinned.count; i++) {
        struct allocation *a = &memory.pinned.all[i];
        if (a->begin <= (const char *)p && (const char *)p < a->end) return a;
        if (a->end == p) ends = a;
    }
    return ends;
}

int memory_unpin(void *p) {
    pthread_mutex_lock(&memory.lock);
    struct allocation *a = find_pinned(p);
    int rc = a && a->begin == p && !a->registered ? 0 : -1;
    if (rc == 0) {
        munmap(p, round_up((size_t)(a->end - a->begin), PAGE_BYTES));
        *a = memory.pinned.all[--memory.pinned.count];
    }
    pthread_mutex_unlock(&memory.lock);
    return rc;
}

// ---------------------------------------------------------------- host memory that others map and register

// Whether all of it is mapped: what is not cannot be written back.
static bool is_mapped(const char *begin, const char *end) {
    char *page = (char *)((uintptr_t)begin / PAGE_BYTES * PAGE_BYTES);
    return msync(page, (size_t)(end - page), MS_ASYNC) == 0;
}

cudaError_t memory_register(void *p, size_t bytes) {
    char *begin = p, *end = begin + bytes;
    cudaError_t e = bytes && is_mapped(begin, end) ? cudaSuccess : cudaErrorInvalidValue;
    pthread_mutex_lock(&memory.lock);
    for (size_t i = 0; i < memory.pinned.count && e == cudaSuccess; i++) {
        const struct allocation *a = &memory.pinned.all[i];
        if (begin < a->end && a->begin < end) e = cudaErrorHostMemoryAlreadyRegistered;
    }
    if (e == cudaSuccess)
        *append(&memory.pinned) = (struct allocation){begin, end, begin, .live = true, .registered = true};
    pthread_mutex_unlock(&memory.lock);
    return e;
}

cudaError_t memory_unregister(void *p) {
    cudaError_t e = cudaErrorHostMemoryNotRegistered;
    pthread_mutex_lock(&memory.lock);
    struct allocation *a = find_pinned(p);
    if (a && a->begin == p && a->registered) {
        e = is_mapped(a->begin, a->end) ? cudaSuccess : cudaErrorInvalidValue;
        *a = memory.pinned.all[--memory.pinned.count];
    }
    pthread_mutex_unlock(&memory.lock);
    return e;
}

size_t memory_registered(bool *mapped) {
    size_t bytes = 0;
    *mapped = true;
    pthread_mutex_lock(&memory.lock);
    for (size_t i = 0; i < memory.pinned.count; i++) {
        const struct allocation *a = &memory.pinned.all[i];
        if (!a->registered) continue;
        bytes += (size_t)(a->end - a->begin);
        *mapped = *mapped && is_mapped(a->begin, a->end);
    }
    pthread_mutex_unlock(&memory.lock);
    return bytes;
}

// ---------------------------------------------------------------- looking at pointers

struct memory_place memory_look(const void *p) {
    struct memory_place place = {.kind = MEMORY_PAGEABLE, .device = -1};
    pthread_mutex_lock(&memory.lock);
    for (int d = 0; d < memory.devices; d++) {
        struct range *r = &memory.range[d];
        if ((const char *)p < r->base || (const char *)p >= r->base + RANGE_BYTES) continue;
        struct allocation *a = find(r, p);
        bool inside = a && a->live && (const char *)p <= a->end;
        place = (struct memory_place){.kind = inside ? MEMORY_DEVICE : MEMORY_STRAY,
                                      .device = d,
                                      .begin = a ? a->begin : NULL,
                                      .end = a ? a->end : NULL};
    }
    struct allocation *a = place.kind == MEMORY_PAGEABLE ? find_pinned(p) : NULL;
    if (a) place = (struct memory_place){MEMORY_PINNED, -1, a->begin, a->end};
    pthread_mutex_unlock(&memory.lock);
    return place;
}
