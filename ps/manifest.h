// What all roles must agree on before a byte of payload moves: layout, dtype, partition map,
// consistency, everything that decides an update, and seed, batch, sequence length and steps. Exchanged at
// login; a mismatch is refused with both sides' words.
#ifndef STARRING_PS_MANIFEST_H
#define STARRING_PS_MANIFEST_H

#include "ps/shard_map.h"
#include "shared/config/config.h"

struct manifest {
    uint64_t hash;
    char text[240];  // the same in words, for the message of a refusal
};

struct manifest manifest_make(const struct config *c, const struct layout *l, const struct shard_map *m);

#endif
