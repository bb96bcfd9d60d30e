#include "ps/net/meeting.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/core/error.h"
#include "shared/core/text.h"
#include "shared/state/checkpoint_read.h"

// ---------------------------------------------------------------- names
const char *meeting_start_name(char out[MEET_NAME_MAX], uint32_t epoch, enum ps_role role) {
    snprintf(out, MEET_NAME_MAX, "star/start/%" PRIu32 "/%s", epoch, ps_role_name(role));
    return out;
}
const char *meeting_join_name(char out[MEET_NAME_MAX], uint32_t epoch, int worker, uint64_t life) {
    snprintf(out, MEET_NAME_MAX, "star/join/%" PRIu32 "/%d/%" PRIx64, epoch, worker, life);
    return out;
}
const char *meeting_over_name(char out[MEET_NAME_MAX], uint32_t epoch) {
    snprintf(out, MEET_NAME_MAX, "star/over/%" PRIu32, epoch);
    return out;
}

// ---------------------------------------------------------------- texts
// Each begins with a line of numbers.
static char *said(char *text, size_t *bytes) {
    *bytes = strlen(text);
    return text;
}

// The end of a text without data after its zero; NULL: it is no such text.
static const char *end_of(const char *text, size_t bytes) {
    return strlen(text) == bytes ? text + bytes : NULL;
}

// Copies so many bytes, which a newline must follow, to out of `room`. Returns the text after it, or NULL if the text
// is shorter.
static const char *part(const char *text, const char *end, uint64_t bytes, char *out, size_t room) {
    if (bytes >= room || (size_t)(end - text) <= bytes || text[bytes] != '\n') return NULL;
    memcpy(out, text, (size_t)bytes);
    out[bytes] = 0;
    return text + bytes + 1;
}

char *meeting_now_text(const struct meeting_now *n, size_t *bytes) {
    return said(xasprintf("%" PRIu32 " %" PRIx64 " %" PRIx64 " %s", n->epoch, n->job, n->clock, n->address),
                bytes);
}

_Static_assert(ROSTER_ADDRESS_MAX == 256, "as the format below has it");
bool meeting_now_read(const char *text, size_t bytes, struct meeting_now *out) {
    int used = 0;
    *out = (struct meeting_now){0};
    return end_of(text, bytes) &&
           sscanf(text, "%" SCNu32 " %" SCNx64 " %" SCNx64 " %255s%n", &out->epoch, &out->job, &out->clock,
                  out->address, &used) == 4 &&
           !text[used] && out->epoch && out->epoch <= INT32_MAX && out->job;
}

int start_point_check(const struct start_point *p, const struct checkpoint *c) {
    if (!strcmp(checkpoint_seal(c), p->seal)) return 0;
    return fail("%s: is another checkpoint here than where the scheduler runs", checkpoint_path(c));
}

char *meeting_start_text(const struct meeting_start *s, size_t *bytes) {
    size_t n;
    const struct start_point *p = &s->from;
    char *roster = roster_text(s->roster, &n);
    char *text = xasprintf("%s %" PRId64 " %" PRIu32 " %zu\n%s\n%s", p->seal[0] ? p->seal : "-", p->step,
                           s->life, strlen(p->checkpoint), p->checkpoint, roster);
    free(roster);
    return said(text, bytes);
}

bool meeting_start_read(const char *text, size_t bytes, int shards, int workers, struct meeting_start *out) {
    const char *end = end_of(text, bytes);
    uint64_t n = 0;
    int used = 0;
    *out = (struct meeting_start){0};
    if (!end ||
        sscanf(text, "%16s %" SCNd64 " %" SCNu32 " %" SCNu64 "%n", out->from.seal, &out->from.step,
               &out->life, &n, &used) != 4 ||
        out->from.step < 0 || text[used] != '\n')
        return false;
    const char *roster = part(text + used + 1, end, n, out->from.checkpoint, sizeof out->from.checkpoint);
    if (roster) out->roster = roster_read(roster, (size_t)(end - roster), shards, workers);
    return out->roster != NULL;
}

char *meeting_ready_text(const struct meeting_ready *r, size_t *bytes) {
    const char *identity = r->identity ? r->identity : "";
    return said(xasprintf("%" PRIu32 " %" PRIx64 " %zu\n%s\n%s", r->epoch, r->manifest, strlen(identity),
                          identity, r->endpoints ? r->endpoints : ""),
                bytes);
}

bool meeting_ready_read(const char *text, size_t bytes, struct meeting_ready *out) {
    const char *end = end_of(text, bytes);
    uint64_t n = 0;
    int used = 0;
    *out = (struct meeting_ready){0};
    if (!end ||
        sscanf(text, "%" SCNu32 " %" SCNx64 " %" SCNu64 "%n", &out->epoch, &out->manifest, &n, &used) != 3 ||
        text[used] != '\n' || n > bytes)
        return false;
    char *identity = xcalloc((unsigned long)n + 1, 1);
    out->endpoints = part(text + used + 1, end, n, identity, (size_t)n + 1);
    if (out->endpoints && n) out->identity = identity;
    if (!out->identity) free(identity);
    return out->endpoints != NULL;
}

char *meeting_failed_text(const struct meeting_failed *f, size_t *bytes) {
    return said(xasprintf("%" PRIu32 " %d\n%s", f->epoch, f->lost, f->why), bytes);
}

bool meeting_failed_read(const char *text, size_t bytes, struct meeting_failed *out) {
    int used = 0, lost = 0;
    *out = (struct meeting_failed){0};
    if (!end_of(text, bytes) || sscanf(text, "%" SCNu32 " %1d%n", &out->epoch, &lost, &used) != 2 ||
        text[used] != '\n')
        return false;
    out->lost = lost != 0;
    text_shorten(out->why, sizeof out->why, text + used + 1);
    return true;
}
