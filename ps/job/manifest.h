// The facts that all roles must agree on before any payload is sent (shared/state/identity.h), and the layout and
// partition map that follow from it. A role that is ready sends them; a mismatch is refused with the keys and both
// sides' values.
#ifndef STARRING_PS_JOB_MANIFEST_H
#define STARRING_PS_JOB_MANIFEST_H

#include "ps/job/ps.h"
#include "ps/job/shard_map.h"

struct manifest {
    uint64_t hash;
    char text[240];  // only of an order: its keys as a text to print
    char *identity;  // only of a role: identity_text, from which differences are described
};

// The manifest of a role; manifest_release frees what it holds.
struct manifest manifest_make(const struct ps_role_options *o, const struct shard_map *m);
void manifest_release(struct manifest *m);
// The manifest of the keys that decide the order of pushes (IDENTITY_ORDER), and of no others: another program, with
// other evaluation, may repeat an order of arrivals. It holds nothing to free.
struct manifest manifest_of_order(const struct config *c, const struct layout *l, const struct shard_map *m);

#endif
