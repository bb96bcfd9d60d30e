// The members of a job and the addresses of its shards, as a start carries them (meeting.h): the only source of
// addresses, tokens and incarnations. A role counts a message in a member's name only with the incarnation in the
// roster, or with one that the scheduler has sent since (WIRE_MEMBER).
//
//     shard INCARNATION ADDRESS TOKEN      a line per shard, in shard order; TOKEN "-": none
//     worker INCARNATION LIFE              a line per worker; workers, who connect only to shards, get none
//
// Pure. Texts come from the network: nothing in them is trusted.
#ifndef STARRING_PS_NET_ROSTER_H
#define STARRING_PS_NET_ROSTER_H

#include <stddef.h>
#include <stdint.h>

#include "ps/net/wire.h"
#include "shared/fabric/job_key.h"

#define ROSTER_ADDRESS_MAX 256

struct roster_shard {
    char address[ROSTER_ADDRESS_MAX];
    char token[JOB_TOKEN_MAX];  // "": none
    uint64_t incarnation;       // of its server
};

struct roster_worker {
    uint64_t incarnation;  // 0: no process has the rank
    uint32_t life;
};

struct roster {
    int shards, workers;
    struct roster_shard *shard;    // (shards)
    struct roster_worker *worker;  // (workers)
};

struct roster *roster_create(int shards, int workers);
void roster_destroy(struct roster **r);
char *roster_text(const struct roster *r, size_t *bytes);  // malloc'd
// Returns NULL if the text is no roster of so many shards and workers.
struct roster *roster_read(const char *text, size_t bytes, int shards, int workers);

// Whether a message is from shard g, if a server has so many threads: from the process in the roster.
bool roster_is_shard(const struct roster *r, int g, int threads, const struct wire_header *h);

// The shards of a server that is ready: "ADDRESS TOKEN" per line, TOKEN missing or "-": none. Returns (count) shards
// (malloc'd), or NULL if the text does not have exactly so many such lines.
struct roster_shard *roster_read_shards(const char *text, size_t bytes, int count);
// Appends such a line to out of `room` bytes at *at.
void roster_say_shard(char *out, size_t room, size_t *at, const char *address, const char *token);

#endif
