// Batches read ahead: no half is overwritten while something enqueued still reads it.
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/backend.h"
#include "shared/train/batch_feed.h"

#define SEQ 8

struct rig {
    char path[64];
    struct device *dev;
    struct stream *compute;
    struct token_source *data;
    struct config config;
    struct batch_feed *feed;
    atomic_bool let_go;
};

static int stand(void *arg) {
    struct rig *r = arg;
    while (!atomic_load(&r->let_go)) usleep(1000);
    return 0;
}

static void *let_go_later(void *arg) {
    struct rig *r = arg;
    usleep(50000);
    atomic_store(&r->let_go, true);
    return NULL;
}

static int open_rig(void **state) {
    struct rig *r = calloc(1, sizeof *r);
    char text[2000];
    for (size_t i = 0; i < sizeof text; i++) text[i] = (char)('a' + (i * i + i / 7) % 26);
    strcpy(r->path, "/tmp/starring-feed-XXXXXX.txt");
    int fd = mkstemps(r->path, 4);
    assert_true(fd >= 0 && write(fd, text, sizeof text) == (ssize_t)sizeof text && close(fd) == 0);
    const char *why;
    const struct backend *cpu = backend_find("cpu", &why);
    assert_int_equal(dev_open(cpu, &(struct device_options){.threads = 1, .label = "t"}, &r->dev), 0);
    r->compute = stream_create(r->dev, "compute");
    r->data = data_open(&(struct data_options){
        .path = r->path, .tokenizer = "byte", .vocab = 256, .val_fraction = 0.2, .seq = SEQ});
    assert_non_null(r->data);
    r->config = (struct config){.seed = 3, .micro_batch = 2, .accumulation = 1, .train_batch = 4, .seq = SEQ};
    r->feed = batch_feed_create(&(struct batch_feed_options){r->dev, r->compute, &r->config, r->data});
    *state = r;
    return r->feed ? 0 : -1;
}

static int close_rig(void **state) {
    struct rig *r = *state;
    stream_sync(r->compute);
    batch_feed_destroy(&r->feed);
    data_close(&r->data);
    stream_destroy(&r->compute);
    dev_close(&r->dev);
    unlink(r->path);
    free(r);
    return 0;
}

// Enqueues a copy of b behind a stand of the stream, as a step would that the device has not come to yet.
static void copy_late(struct rig *r, struct batch b, int32_t *copy) {
    stream_host(r->compute, "stand", stand, r);
    dev_copy(r->compute, copy, b.tokens, 2 * SEQ * sizeof *copy);
}

static void a_half_waits_for_its_copies(void **state) {
    struct rig *r = *state;
    int32_t want[2 * SEQ], copy[2 * SEQ] = {0};
    pthread_t later;
    assert_int_equal(batch_feed_read(r->feed, 0, 0), 0);
    struct batch b = batch_feed_micro(r->feed, 0, 0);
    memcpy(want, b.tokens, sizeof want);
    copy_late(r, b, copy);
    batch_feed_sent(r->feed, 0);
    assert_int_equal(batch_feed_read(r->feed, 1, 4),
                     0);  // the other half: nothing to wait for
    assert_false(atomic_load(&r->let_go));
    assert_int_equal(pthread_create(&later, NULL, let_go_later, r), 0);
    assert_int_equal(batch_feed_read(r->feed, 2, 8), 0);
    assert_true(atomic_load(&r->let_go));
    pthread_join(later, NULL);
    assert_int_equal(stream_sync(r->compute), 0);
    assert_memory_equal(copy, want, sizeof want);
}

// Sample s is index s % 4 of the draw of step s / 4, wherever a batch begins; a step whose samples turn out to be others
// is read again.
static void samples_are_numbered_over_the_run(void **state) {
    struct rig *r = *state;
    int32_t want[2 * SEQ], targets[2 * SEQ];
    const struct data_slice last = {3, 1, 3, 1, SEQ}, first = {3, 2, 0, 1, SEQ}, own = {3, 1, 0, 2, SEQ};
    assert_int_equal(batch_feed_read(r->feed, 1, 4), 0);
    data_batch(r->data, &own, want, targets);
    assert_memory_equal(batch_feed_micro(r->feed, 1, 0).tokens, want, sizeof want);
    assert_int_equal(batch_feed_read(r->feed, 1, 7), 0);
    data_batch(r->data, &last, want, targets);
    data_batch(r->data, &first, want + SEQ, targets + SEQ);
    assert_memory_equal(batch_feed_micro(r->feed, 1, 0).tokens, want, sizeof want);
    assert_memory_equal(batch_feed_micro(r->feed, 1, 0).targets, targets, sizeof targets);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(samples_are_numbered_over_the_run, open_rig, close_rig),
        cmocka_unit_test_setup_teardown(a_half_waits_for_its_copies, open_rig, close_rig),
    };
    return cmocka_run_group_tests_name("batch_feed", tests, NULL, NULL);
}
