#include "ps/net/notices.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/core/error.h"
#include "shared/core/text.h"
#include "shared/state/checkpoint_read.h"

// ---------------------------------------------------------------- names
const char *notice_start_name(char out[MEET_NAME_MAX], uint32_t epoch, enum ps_role role) {
    snprintf(out, MEET_NAME_MAX, "star/start/%" PRIu32 "/%s", epoch, ps_role_name(role));
    return out;
}
const char *notice_join_name(char out[MEET_NAME_MAX], uint32_t epoch, int worker, uint64_t incarnation) {
    snprintf(out, MEET_NAME_MAX, "star/join/%" PRIu32 "/%d/%" PRIx64, epoch, worker, incarnation);
    return out;
}
const char *notice_over_name(char out[MEET_NAME_MAX], uint32_t epoch) {
    snprintf(out, MEET_NAME_MAX, "star/over/%" PRIu32, epoch);
    return out;
}

// ---------------------------------------------------------------- the roster
#define LINE_MAX_BYTES (ROSTER_ADDRESS_MAX + JOB_TOKEN_MAX + 64)

struct roster *roster_create(int shards, int workers) {
    struct roster *r = xcalloc(1, sizeof *r);
    *r = (struct roster){.shards = shards,
                         .workers = workers,
                         .shard = xcalloc((unsigned long)shards, sizeof *r->shard),
                         .worker = xcalloc((unsigned long)workers, sizeof *r->worker)};
    return r;
}

void roster_destroy(struct roster **at) {
    if (!*at) return;
    free((*at)->shard);
    free((*at)->worker);
    free(*at);
    *at = NULL;
}

char *roster_text(const struct roster *r) {
    size_t room = (size_t)(r->shards + r->workers) * LINE_MAX_BYTES + 1, at = 0;
    char *text = xcalloc(room, 1);
    for (const struct roster_shard *s = r->shard; s < r->shard + r->shards; s++)
        at += (size_t)snprintf(text + at, room - at, "shard %" PRIx64 " %s %s\n", s->incarnation, s->address,
                               s->token[0] ? s->token : "-");
    for (const struct roster_worker *w = r->worker; w < r->worker + r->workers; w++)
        at += (size_t)snprintf(text + at, room - at, "worker %" PRIx64 " %" PRIu32 "\n", w->incarnation,
                               w->process_no);
    return text;
}

// The next line without its newline; false: there is none, or it is too long, or has a zero in it.
static bool next_line(const char **text, const char *end, char line[LINE_MAX_BYTES]) {
    const char *newline = *text < end ? memchr(*text, '\n', (size_t)(end - *text)) : NULL;
    size_t n = newline ? (size_t)(newline - *text) : 0;
    if (!newline || n >= LINE_MAX_BYTES || memchr(*text, 0, n)) return false;
    memcpy(line, *text, n);
    line[n] = 0;
    *text = newline + 1;
    return true;
}

// "ADDRESS TOKEN", or only the address.
_Static_assert(ROSTER_ADDRESS_MAX == 256 && JOB_TOKEN_MAX == 41, "as the format below has it");
static bool read_endpoint(const char *line, struct roster_shard *s) {
    int used = 0;
    bool good = sscanf(line, "%255[^ ]%n %40[^ ]%n", s->address, &used, s->token, &used) >= 1 && !line[used];
    if (!strcmp(s->token, "-")) s->token[0] = 0;
    return good;
}

struct roster *roster_read(const char *text, size_t bytes, int shards, int workers) {
    struct roster *r = roster_create(shards, workers);
    const char *at = text, *end = text + bytes;
    char line[LINE_MAX_BYTES];
    bool good = true;
    for (int i = 0; i < shards && good; i++) {
        int used = 0;
        good = next_line(&at, end, line) &&
               sscanf(line, "shard %" SCNx64 " %n", &r->shard[i].incarnation, &used) == 1 && used &&
               read_endpoint(line + used, &r->shard[i]);
    }
    for (int i = 0; i < workers && good; i++) {
        struct roster_worker *w = &r->worker[i];
        int used = 0;
        good =
            next_line(&at, end, line) &&
            sscanf(line, "worker %" SCNx64 " %" SCNu32 "%n", &w->incarnation, &w->process_no, &used) == 2 &&
            !line[used];
    }
    if (!good || at != end) roster_destroy(&r);
    return r;
}

bool roster_is_shard(const struct roster *r, int g, int threads, const struct wire_header *h) {
    return h->role == PS_SHARD && h->rank == g / threads && h->thread == g % threads && h->incarnation &&
           h->incarnation == r->shard[g].incarnation;
}

struct roster_shard *roster_read_shards(const char *text, size_t bytes, int count) {
    struct roster_shard *all = xcalloc((unsigned long)count, sizeof *all);
    const char *at = text, *end = text + bytes;
    char line[LINE_MAX_BYTES];
    bool good = true;
    for (int i = 0; i < count && good; i++) good = next_line(&at, end, line) && read_endpoint(line, &all[i]);
    if (good && at == end) return all;
    free(all);
    return NULL;
}

void roster_append_shard(char *out, size_t room, size_t *at, const char *address, const char *token) {
    *at += (size_t)snprintf(out + *at, room - *at, "%s %s\n", address, *token ? token : "-");
}

// ---------------------------------------------------------------- texts
// Each begins with a line of numbers.
// The end of a text without data after its zero; NULL: it is no such text.
static const char *end_of(const char *text, size_t bytes) {
    return strlen(text) == bytes ? text + bytes : NULL;
}

// Copies so many bytes, which a newline must follow, to out of `room`. Returns the text after it, or NULL if the text
// is shorter.
static const char *copy_field(const char *text, const char *end, uint64_t bytes, char *out, size_t room) {
    if (bytes >= room || (size_t)(end - text) <= bytes || text[bytes] != '\n') return NULL;
    memcpy(out, text, (size_t)bytes);
    out[bytes] = 0;
    return text + bytes + 1;
}

char *notice_now_text(const struct notice_now *n) {
    return xasprintf("%" PRIu32 " %" PRIx64 " %" PRIx64 " %s", n->epoch, n->job, n->clock, n->address);
}

_Static_assert(ROSTER_ADDRESS_MAX == 256, "as the format below has it");
bool notice_now_read(const char *text, size_t bytes, struct notice_now *out) {
    int used = 0;
    *out = (struct notice_now){0};
    return end_of(text, bytes) &&
           sscanf(text, "%" SCNu32 " %" SCNx64 " %" SCNx64 " %255s%n", &out->epoch, &out->job, &out->clock,
                  out->address, &used) == 4 &&
           !text[used] && out->epoch && out->epoch <= INT32_MAX && out->job;
}

int start_point_check(const struct start_point *p, const struct checkpoint *c) {
    if (!strcmp(checkpoint_seal(c), p->seal)) return 0;
    return fail("%s: is another checkpoint here than where the scheduler runs", checkpoint_path(c));
}

char *notice_start_text(const struct notice_start *s) {
    const struct start_point *p = &s->from;
    char *roster = roster_text(s->roster);
    char *text = xasprintf("%s %" PRId64 " %" PRIu32 " %zu\n%s\n%s", p->seal[0] ? p->seal : "-", p->step,
                           s->process_no, strlen(p->checkpoint), p->checkpoint, roster);
    free(roster);
    return text;
}

bool notice_start_read(const char *text, size_t bytes, int shards, int workers, struct notice_start *out) {
    const char *end = end_of(text, bytes);
    uint64_t n = 0;
    int used = 0;
    *out = (struct notice_start){0};
    if (!end ||
        sscanf(text, "%16s %" SCNd64 " %" SCNu32 " %" SCNu64 "%n", out->from.seal, &out->from.step,
               &out->process_no, &n, &used) != 4 ||
        out->from.step < 0 || text[used] != '\n')
        return false;
    const char *roster =
        copy_field(text + used + 1, end, n, out->from.checkpoint, sizeof out->from.checkpoint);
    if (roster) out->roster = roster_read(roster, (size_t)(end - roster), shards, workers);
    return out->roster != NULL;
}

char *notice_ready_text(const struct notice_ready *r) {
    const char *identity = r->identity ? r->identity : "";
    return xasprintf("%" PRIu32 " %" PRIx64 " %zu\n%s\n%s", r->epoch, r->manifest, strlen(identity), identity,
                     r->endpoints ? r->endpoints : "");
}

bool notice_ready_read(const char *text, size_t bytes, struct notice_ready *out) {
    const char *end = end_of(text, bytes);
    uint64_t n = 0;
    int used = 0;
    *out = (struct notice_ready){0};
    if (!end ||
        sscanf(text, "%" SCNu32 " %" SCNx64 " %" SCNu64 "%n", &out->epoch, &out->manifest, &n, &used) != 3 ||
        text[used] != '\n' || n > bytes)
        return false;
    char *identity = xcalloc((unsigned long)n + 1, 1);
    out->endpoints = copy_field(text + used + 1, end, n, identity, (size_t)n + 1);
    if (out->endpoints && n) out->identity = identity;
    if (!out->identity) free(identity);
    return out->endpoints != NULL;
}

char *notice_failed_text(const struct notice_failed *f) {
    return xasprintf("%" PRIu32 " %d\n%s", f->epoch, f->lost, f->why);
}

bool notice_failed_read(const char *text, size_t bytes, struct notice_failed *out) {
    int used = 0, lost = 0;
    *out = (struct notice_failed){0};
    if (!end_of(text, bytes) || sscanf(text, "%" SCNu32 " %1d%n", &out->epoch, &lost, &used) != 2 ||
        text[used] != '\n')
        return false;
    out->lost = lost != 0;
    text_shorten(out->why, sizeof out->why, text + used + 1);
    return true;
}
