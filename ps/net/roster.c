#include "ps/net/roster.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/core/error.h"

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

char *roster_text(const struct roster *r, size_t *bytes) {
    size_t room = (size_t)(r->shards + r->workers) * LINE_MAX_BYTES + 1, at = 0;
    char *text = xcalloc(room, 1);
    for (const struct roster_shard *s = r->shard; s < r->shard + r->shards; s++)
        at += (size_t)snprintf(text + at, room - at, "shard %" PRIx64 " %s %s\n", s->incarnation, s->address,
                               s->token[0] ? s->token : "-");
    for (const struct roster_worker *w = r->worker; w < r->worker + r->workers; w++)
        at += (size_t)snprintf(text + at, room - at, "worker %" PRIx64 " %" PRIu32 "\n", w->incarnation,
                               w->life);
    *bytes = at;
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
static bool read_place(const char *line, struct roster_shard *s) {
    int used = 0;
    bool good = sscanf(line, "%255[^ ]%n %40[^ ]%n", s->address, &used, s->token, &used) >= 1 && !line[used];
    if (!strcmp(s->token, "-")) s->token[0] = 0;
    return good;
}

static bool read_shard(const char *line, struct roster_shard *s) {
    int used = 0;
    return sscanf(line, "shard %" SCNx64 " %n", &s->incarnation, &used) == 1 && used &&
           read_place(line + used, s);
}

static bool read_worker(const char *line, struct roster_worker *w) {
    int used = 0;
    return sscanf(line, "worker %" SCNx64 " %" SCNu32 "%n", &w->incarnation, &w->life, &used) == 2 &&
           !line[used];
}

struct roster *roster_read(const char *text, size_t bytes, int shards, int workers) {
    struct roster *r = roster_create(shards, workers);
    const char *at = text, *end = text + bytes;
    char line[LINE_MAX_BYTES];
    bool good = true;
    for (int i = 0; i < shards && good; i++)
        good = next_line(&at, end, line) && read_shard(line, &r->shard[i]);
    for (int i = 0; i < workers && good; i++)
        good = next_line(&at, end, line) && read_worker(line, &r->worker[i]);
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
    for (int i = 0; i < count && good; i++) good = next_line(&at, end, line) && read_place(line, &all[i]);
    if (good && at == end) return all;
    free(all);
    return NULL;
}

void roster_say_shard(char *out, size_t room, size_t *at, const char *address, const char *token) {
    *at += (size_t)snprintf(out + *at, room - *at, "%s %s\n", address, *token ? token : "-");
}
