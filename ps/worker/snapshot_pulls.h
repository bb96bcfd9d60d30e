// How worker 0 collects a snapshot (shared/train/saver.h) while training goes on: it asks each key's shard once,
// and the shard answers with a copy as soon as the key's version is the wanted one or a later one.
//
//     worker 0                    shard, each key on its own
//     SNAPSHOT version v   -->    version < v: remembered, and answered by the update that makes it v
//                          <--    SNAPSHOT_REPLY version, weights
//
// The answers gather in the snapshot's room, and the next one begins when it is free: no file is waited for here.
//
// A worker that trains in step asks for what it has just finished, before it can push anything to the next update: the weights
// are those of one version. Where pushes are applied on arrival each key is answered at its own moment.
//
// Pure, as the worker's core; the communication thread's.
#ifndef STARRING_PS_WORKER_SNAPSHOT_PULLS_H
#define STARRING_PS_WORKER_SNAPSHOT_PULLS_H

#include "ps/job/shard_map.h"
#include "ps/net/port.h"
#include "shared/train/saver.h"

struct snapshot_pulls_options {
    const struct shard_map *map;
    enum dtype dtype;
    struct ps_port port;
};

struct snapshot_pulls;
struct snapshot_pulls *snapshot_pulls_create(const struct snapshot_pulls_options *o);
void snapshot_pulls_destroy(struct snapshot_pulls **p);

void snapshot_pulls_open(struct snapshot_pulls *p, int64_t version, struct snapshot *s);
// An answer. The frame stays the caller's.
void snapshot_pulls_answer(struct snapshot_pulls *p, const struct wire_header *h,
                           const struct ps_frame *frame);
// Begins the next one when the room is free.
void snapshot_pulls_tick(struct snapshot_pulls *p);
// Whether one is being collected, or what was collected is not in its file yet.
bool snapshot_pulls_busy(const struct snapshot_pulls *p);
// Nothing more is wanted: snapshots are touched no longer.
void snapshot_pulls_end(struct snapshot_pulls *p);

#endif
