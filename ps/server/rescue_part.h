// The state that a server leaves where a death ends an epoch (ps/scheduler/rescue.h): its part of the checkpoint behind the
// step that was decided last, and, where the server died whose replica it keeps, that one's part too. Written in
// the background (shared/core/background.h), while the main thread answers the scheduler.
//
// Threads   The server's main thread; settle and what follows it: the background's.
// Errors    A part that cannot be written ends the rescue: server-R.failed says why, where the disk has room for that, and
//           a warning, and a RESCUE to the scheduler.
#ifndef STARRING_PS_SERVER_RESCUE_PART_H
#define STARRING_PS_SERVER_RESCUE_PART_H

#include "ps/net/wire.h"
#include "ps/server/replica.h"
#include "ps/server/state_file.h"

struct rescue_part_options {
    const struct config *config;
    const struct layout *layout;
    const struct shard_map *map;
    int rank;
    const char *run_dir;
    const struct server_buffers *own, *replica;  // (map->count) each
    // Brings the own keys, or the replica's, to the step; the first call ends all that still changes them. 0, or -1 with the
    // reason.
    void *ctx;
    int (*settle)(void *ctx, bool replica, int64_t steps, const struct update_scalars *last,
                  char why[WIRE_TEXT_MAX]);
};

struct rescue_part;
// A RESCUE of the scheduler: the first one begins, later ones may ask for the replica's part as well. *at: NULL before.
void rescue_part_asked(struct rescue_part **at, const struct rescue_part_options *o,
                       const struct wire_header *h);
// Whether a part cannot be left: then *answer is the RESCUE that tells the scheduler why. p may be NULL.
bool rescue_part_failed(struct rescue_part *p, struct wire_header *answer);
void rescue_part_destroy(struct rescue_part **at);  // what is being written is given up

#endif
