// Each pointer of an operation's arguments, which is each word that is an address inside a buffer, is
// replaced by the same place in the buffer's mirror.
#include "tests/device/device_ops.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

// clang-format off
#include <cmocka.h>
// clang-format on

#define GUARD_BYTES 512
#define GUARD_VALUE 0xff  // NaN in each float format: what is read beyond a buffer shows as well

struct buffer {
    unsigned char *host;
    size_t bytes;
    // While an operation runs: device memory, where the contents begin in it, and its image on the host.
    unsigned char *device, *image;
    size_t total, start;
};

struct rig {
    struct device *dev;
    struct stream *stream;
    struct buffer *buffers;  // (count)
    size_t count, capacity;
    char text[768];
    bool told;
};

// The program's only rig: operations have no argument that could carry one.
static struct rig *rig(void) {
    static struct rig r;
    return &r;
}

static size_t number_given(const char *name, size_t otherwise) {
    const char *text = getenv(name);
    return text && *text ? (size_t)strtoull(text, NULL, 10) : otherwise;
}

int device_runs(void) { return number_given("STARRING_TEST_SHORT", 0) ? 1 : 2; }

uint64_t device_seed(void) {
    uint64_t seed = number_given("STARRING_TEST_SEED", (size_t)time(NULL));
    printf("device: random numbers of STARRING_TEST_SEED=%llu\n", (unsigned long long)seed);
    return seed;
}

// ---------------------------------------------------------------- buffers

void device_buffer_release(void *p) {
    struct rig *r = rig();
    if (!p) return;
    for (size_t i = r->count; i-- > 0;)
        if (r->buffers[i].host == p) {
            r->buffers[i] = r->buffers[--r->count];
            free(p);
            return;
        }
    fail_msg("%p is not a buffer of kt_alloc: free it with free()", p);
}

static struct buffer *buffer_around(struct rig *r, uintptr_t address) {
    for (size_t i = 0; i < r->count; i++) {
        uintptr_t begin = (uintptr_t)r->buffers[i].host;
        if (address >= begin && address < begin + r->buffers[i].bytes) return &r->buffers[i];
    }
    return NULL;
}

// ---------------------------------------------------------------- the device

static void close_device(struct rig *r) {
    if (r->stream) stream_destroy(&r->stream);
    if (r->dev) dev_close(&r->dev);
}

// Also frees what a skipped or failed test has left.
int device_done(void **state) {
    struct rig *r = rig();
    (void)state;
    close_device(r);
    for (size_t i = 0; i < r->count; i++) free(r->buffers[i].host);
    free(r->buffers);
    r->buffers = NULL;
    r->count = r->capacity = 0;
    return 0;
}

static void tell(struct rig *r) {
    struct device_facts f;
    if (r->told || dev_facts(r->dev, &f) != 0) return;
    r->told = true;
    printf("device: %s, compute capability %d.%d, %zu MiB\n", f.name, f.sm_version / 10, f.sm_version % 10,
           f.memory_bytes >> 20);
    fflush(stdout);
}

// 0, -1 with *why, or the test is skipped: there is no device.
static int open_device(struct rig *r, const char **why) {
    const char *missing = "";
    if (r->stream) return 0;
    const struct backend *b = backend_find("cuda", &missing);
    if (!b) {
        if (!r->told) printf("device: skipped: %s\n", missing);
        r->told = true;
        skip();
    }
    if (dev_open(b, &(struct device_options){.label = "test"}, &r->dev) == 0)
        r->stream = stream_create(r->dev, "test");
    if (r->stream) {
        tell(r);
        return 0;
    }
    close_device(r);
    *why = "the device cannot be opened";
    return -1;
}

// A test without a device is skipped here, before it has allocated anything.
void *device_buffer(size_t bytes) {
    struct rig *r = rig();
    const char *why = "";
    if (open_device(r, &why) != 0) fail_msg("%s", why);
    if (r->count == r->capacity) {
        r->capacity = r->capacity ? 2 * r->capacity : 64;
        r->buffers = realloc(r->buffers, r->capacity * sizeof *r->buffers);
        assert_non_null(r->buffers);
    }
    void *p = malloc(bytes);
    if (p) r->buffers[r->count++] = (struct buffer){.host = p, .bytes = bytes};
    return p;
}

// ---------------------------------------------------------------- mirrors

// device: | guard 0xff .. | contents | 0..15 x 0xff | guard 0xff .. |    ends where the allocation ends
//         0               start                                     total, a multiple of 256
static int mirror(struct rig *r, struct buffer *b) {
    size_t guard = number_given("STARRING_TEST_GUARD", GUARD_BYTES), rounded = (b->bytes + 15) / 16 * 16;
    b->total = dev_round(2 * guard + rounded);
    b->start = b->total - guard - rounded;
    b->image = malloc(b->total);
    b->device = dev_alloc(r->dev, MEM_WORKSPACE, b->total);
    if (!b->image || !b->device) return -1;
    memset(b->image, GUARD_VALUE, b->total);
    memcpy(b->image + b->start, b->host, b->bytes);
    dev_copy(r->stream, b->device, b->image, b->total);
    return 0;
}

static void drop_mirrors(struct rig *r) {
    for (size_t i = 0; i < r->count; i++) {
        struct buffer *b = &r->buffers[i];
        dev_free(r->dev, MEM_WORKSPACE, b->device, b->total);
        free(b->image);
        b->device = b->image = NULL;
    }
}

// The mirror's place of a host address; NULL when it is in no buffer, or there is no memory.
static void *place_of(struct rig *r, uintptr_t address) {
    struct buffer *b = buffer_around(r, address);
    if (!b || (!b->device && mirror(r, b) != 0)) return NULL;
    return b->device + b->start + (address - (uintptr_t)b->host);
}

static size_t arguments_bytes(enum op op) {
#define ARGUMENTS_BYTES(OP, name, args_t) [OP] = sizeof(struct args_t),
    static const size_t bytes[OP_COUNT] = {OPERATIONS(ARGUMENTS_BYTES)};
    return bytes[op];
}

static int translate(struct rig *r, enum op op, void *args) {
    for (size_t offset = 0; offset + sizeof(uintptr_t) <= arguments_bytes(op); offset += sizeof(uintptr_t)) {
        uintptr_t word;
        memcpy(&word, (char *)args + offset, sizeof word);
        if (!buffer_around(r, word)) continue;
        void *p = place_of(r, word);
        if (!p) {
            snprintf(r->text, sizeof r->text, "byte %zu of its arguments: no device memory for its buffer",
                     offset);
            return -1;
        }
        memcpy((char *)args + offset, &p, sizeof p);
    }
    return 0;
}

static int translate_inputs(struct rig *r, struct reduce_args *a, const void **inputs) {
    for (int32_t i = 0; i < a->count; i++) {
        inputs[i] = place_of(r, (uintptr_t)a->inputs[i]);
        if (inputs[i]) continue;
        snprintf(r->text, sizeof r->text, "input %d is no buffer of kt_alloc, or does not fit the device", i);
        return -1;
    }
    a->inputs = inputs;
    return 0;
}

static int check_guards(struct rig *r, const struct buffer *b) {
    for (size_t i = 0; i < b->total; i++) {
        if (i == b->start) i += b->bytes;
        if (i >= b->total || b->image[i] == GUARD_VALUE) continue;
        snprintf(r->text, sizeof r->text, "byte %lld of a buffer of %zu bytes was written",
                 (long long)i - (long long)b->start, b->bytes);
        return -1;
    }
    return 0;
}

// After the operation: everything comes back, whether it was an output or not.
static int bring_back(struct rig *r) {
    int rc = 0;
    for (size_t i = 0; i < r->count; i++)
        if (r->buffers[i].device)
            dev_copy(r->stream, r->buffers[i].image, r->buffers[i].device, r->buffers[i].total);
    if (stream_sync(r->stream) != 0) {
        snprintf(r->text, sizeof r->text, "%s", dev_error(r->dev));
        return -1;
    }
    for (size_t i = 0; i < r->count; i++) {
        struct buffer *b = &r->buffers[i];
        if (!b->device) continue;
        memcpy(b->host, b->image + b->start, b->bytes);
        if (check_guards(r, b) != 0) rc = -1;
    }
    return rc;
}

// ---------------------------------------------------------------- operations

static int run(enum op op, const void *args, const char **why) {
    struct rig *r = rig();
    const void *inputs[REDUCE_MAX];
    _Alignas(16) unsigned char copy[OP_ARGS_MAX_BYTES];
    size_t bytes = arguments_bytes(op);
    if (open_device(r, why) != 0) return -1;
    memcpy(copy, args, bytes);
    int rc = translate(r, op, copy);
    if (rc == 0 && op == OP_REDUCE) rc = translate_inputs(r, (struct reduce_args *)copy, inputs);
    if (rc == 0) {
        dev_launch(r->stream, op, copy, bytes);
        rc = bring_back(r);
    } else {
        stream_sync(r->stream);  // copies to mirrors under way
    }
    drop_mirrors(r);
    if (rc == 0) return 0;
    *why = r->text;
    close_device(r);  // a failed stream stays failed: the next case opens another
    return -1;
}

#define DEVICE_OPERATION(OP, name, args_t)                                   \
    static int run_##name(int threads, const void *args, const char **why) { \
        (void)threads;                                                       \
        return run(OP, args, why);                                           \
    }
OPERATIONS(DEVICE_OPERATION)

#define DEVICE_ENTRY(OP, name, args_t) [OP] = run_##name,
const op_fn device_ops[OP_COUNT] = {OPERATIONS(DEVICE_ENTRY)};
