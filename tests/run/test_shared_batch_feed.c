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

// Documents of their own length: each micro-batch is as long as the bucket of its longest one, on every rank what all ranks count.
static void micro_batches_have_their_own_length(void **state) {
    struct rig *r = *state;
    enum { B = 2, K = 3, LONGEST = 40, N = 3 };
    char text[4000];
    for (size_t i = 0, n = 1; i < sizeof text; n++) {
        for (size_t end = i + n * 7 % 37; i < end && i < sizeof text; i++) text[i] = 'a';
        for (int k = 0; k < 2 && i < sizeof text; k++) text[i++] = '\n';
    }
    FILE *f = fopen(r->path, "wb");
    assert_true(fwrite(text, 1, sizeof text, f) == sizeof text && !fclose(f));
    struct token_source *whole = data_open(&(struct data_options){
        .path = r->path, .tokenizer = "byte", .vocab = 256, .seq = LONGEST, .whole = true});
    assert_non_null(whole);
    struct config c = {
        .seed = 3, .micro_batch = B, .accumulation = K, .train_batch = N * B * K, .seq = LONGEST};
    struct batch_feed *feed = batch_feed_create(&(struct batch_feed_options){r->dev, r->compute, &c, whole});
    int64_t shapes = 0;
    for (int64_t step = 0; step < 20; step++) {
        struct batch_count all = batch_feed_count(feed, step * c.train_batch, c.train_batch), sum = {0};
        for (int rank = 0; rank < N; rank++) {
            // The last rank's batch is odd: it reaches into the next draw.
            int64_t first = step * c.train_batch + rank * B * K;
            assert_int_equal(batch_feed_read(feed, step, first + (step == 7)), 0);
            assert_int_equal(batch_feed_read(feed, step, first), 0);
            for (int k = 0; k < K; k++) {
                struct batch b = batch_feed_micro(feed, step, k);
                int64_t longest = 0;
                for (int i = 0; i < B; i++) {
                    int32_t tokens[LONGEST], targets[LONGEST];
                    struct data_slice one = {3, step, first % c.train_batch + k * B + i, 1, b.seq};
                    int64_t n = data_length(whole, &one);
                    data_batch(whole, &one, tokens, targets);
                    assert_memory_equal(tokens, b.tokens + i * b.seq, (size_t)b.seq * sizeof *tokens);
                    assert_memory_equal(targets, b.targets + i * b.seq, (size_t)b.seq * sizeof *targets);
                    sum.tokens += n;
                    sum.squares += (double)(n * n);
                    longest = n > longest ? n : longest;
                }
                assert_int_equal(b.seq, data_bucket(longest, LONGEST));
                sum.padded_tokens += B * b.seq;
                shapes |= 1 << b.seq / 8;
            }
            batch_feed_sent(feed, step);
        }
        assert_true(all.tokens == sum.tokens && all.padded_tokens == sum.padded_tokens &&
                    all.squares == sum.squares);
        assert_true(all.tokens < all.padded_tokens);
    }
    assert_true(shapes & (shapes - 1));  // there were several
    struct batch_count packed = batch_feed_count(r->feed, 5, 4);
    assert_true(packed.tokens == 4 * SEQ && packed.padded_tokens == 4 * SEQ &&
                packed.squares == 4 * SEQ * SEQ);
    stream_sync(r->compute);
    batch_feed_destroy(&feed);
    data_close(&whole);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(samples_are_numbered_over_the_run, open_rig, close_rig),
        cmocka_unit_test_setup_teardown(micro_batches_have_their_own_length, open_rig, close_rig),
        cmocka_unit_test_setup_teardown(a_half_waits_for_its_copies, open_rig, close_rig),
    };
    return cmocka_run_group_tests_name("batch_feed", tests, NULL, NULL);
}
