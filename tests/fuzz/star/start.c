// The texts of a star's meeting: where an epoch is, how it starts, that a role is ready or has failed; in these the
// roster, the lines of a server's shards, a role's identity. The first byte says which the rest is. An accepted message is written
// and read again as the same.
#include <stdlib.h>
#include <string.h>

#include "ps/net/notices.h"
#include "shared/core/error.h"
#include "shared/state/identity.h"
#include "tests/fuzz/fuzz.h"

#define SHARDS  2
#define WORKERS 2
#define ROOM    2048

static bool same_shard(const struct roster_shard *a, const struct roster_shard *b) {
    return a->incarnation == b->incarnation && !strcmp(a->address, b->address) && !strcmp(a->token, b->token);
}

static void check_ends(const struct roster_shard *s) {
    FUZZ_CHECK(
        s->address[0] && memchr(s->address, 0, sizeof s->address) && memchr(s->token, 0, sizeof s->token),
        "no address, or a text without end");
}

static void read_roster(const char *text, size_t n) {
    struct roster *r = roster_read(text, n, SHARDS, WORKERS);
    if (!r) return;
    size_t bytes;
    char *written = roster_text(r);
    bytes = strlen(written);
    struct roster *again = roster_read(written, bytes, SHARDS, WORKERS);
    FUZZ_CHECK(again, "as written it is refused:\n%s", written);
    for (int g = 0; g < SHARDS; g++) {
        check_ends(&r->shard[g]);
        FUZZ_CHECK(same_shard(&r->shard[g], &again->shard[g]), "another shard %d:\n%s", g, written);
    }
    FUZZ_CHECK(memcmp(r->worker, again->worker, WORKERS * sizeof *r->worker) == 0, "other workers:\n%s",
               written);
    free(written);
    roster_destroy(&again);
    roster_destroy(&r);
}

static void read_shards(const char *text, size_t n) {
    struct roster_shard *all = roster_read_shards(text, n, SHARDS), *again;
    char written[ROOM];
    size_t at = 0;
    if (!all) return;
    for (int i = 0; i < SHARDS; i++)
        roster_append_shard(written, sizeof written, &at, all[i].address, all[i].token);
    again = roster_read_shards(written, at, SHARDS);
    FUZZ_CHECK(again, "as written it is refused:\n%s", written);
    for (int i = 0; i < SHARDS; i++) {
        check_ends(&all[i]);
        FUZZ_CHECK(same_shard(&all[i], &again[i]), "another shard %d:\n%s", i, written);
    }
    free(again);
    free(all);
}

// For two of them: the text that arrived and ours, each on either side.
static void compare(const char *text) {
    static const char ours[] =
        "{\"program\": \"starring\", \"model.layers\": \"2\", \"train.steps\": \"30\"}";
    free(identity_texts_disagreement("worker 1", text, "the scheduler", ours));
    free(identity_texts_disagreement("the scheduler", ours, "worker 1", text));
    char *none = identity_texts_disagreement("worker 1", text, "worker 1", text);
    FUZZ_CHECK(!none, "it differs from itself: %s", none);
}

// ---------------------------------------------------------------- at the meeting
static void same_text(char *text, char *again) {
    FUZZ_CHECK(!strcmp(text, again), "read again it is another:\n%s\n%s", text, again);
    free(text);
    free(again);
}

static void read_now(const char *text, size_t n) {
    struct notice_now a, b;
    size_t bytes;
    if (!notice_now_read(text, n, &a)) return;
    char *written = notice_now_text(&a);
    bytes = strlen(written);
    FUZZ_CHECK(notice_now_read(written, bytes, &b), "as written it is refused:\n%s", written);
    same_text(written, notice_now_text(&b));
}

static void read_start(const char *text, size_t n) {
    struct notice_start a, b;
    size_t bytes;
    if (!notice_start_read(text, n, SHARDS, WORKERS, &a)) return;
    char *written = notice_start_text(&a);
    bytes = strlen(written);
    FUZZ_CHECK(notice_start_read(written, bytes, SHARDS, WORKERS, &b), "as written it is refused:\n%s",
               written);
    same_text(written, notice_start_text(&b));
    roster_destroy(&a.roster);
    roster_destroy(&b.roster);
}

static void read_ready(const char *text, size_t n) {
    struct notice_ready a, b;
    size_t bytes;
    if (!notice_ready_read(text, n, &a)) return;
    char *written = notice_ready_text(&a);
    bytes = strlen(written);
    FUZZ_CHECK(notice_ready_read(written, bytes, &b), "as written it is refused:\n%s", written);
    char *again = notice_ready_text(&b);
    bytes = strlen(again);
    free((char *)a.identity);
    free((char *)b.identity);
    same_text(written, again);
}

static void read_failed(const char *text, size_t n) {
    struct notice_failed a, b;
    size_t bytes;
    if (!notice_failed_read(text, n, &a)) return;
    char *written = notice_failed_text(&a);
    bytes = strlen(written);
    FUZZ_CHECK(notice_failed_read(written, bytes, &b), "as written it is refused:\n%s", written);
    same_text(written, notice_failed_text(&b));
}

FUZZ_TARGET(start) {
    static void (*const said[])(const char *text, size_t n) = {read_now, read_start, read_ready, read_failed};
    struct fuzz_bytes in = {data, size};
    uint64_t what = fuzz_below(&in, 7);
    const char *text = in.left ? (const char *)in.p : "";
    if (what == 0) read_roster(text, in.left);
    if (what == 1) read_shards(text, in.left);
    if (what < 2) return;
    size_t n = in.left;
    char *whole = fuzz_text(&in);
    if (what == 2) compare(whole);
    if (what > 2) said[what - 3](whole, n);
    free(whole);
}
