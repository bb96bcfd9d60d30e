// How worker 0 collects a snapshot (shared/train/saver.h) while training continues. It asks each key's shard once. The
// shard answers with a copy as soon as the key's version is the wanted one or a later one.
//
//     worker 0                    shard, each key on its own
//     SNAPSHOT version v   -->    version < v: remembered, and answered by the update that makes it v
//                          <--    SNAPSHOT_REPLY version, weights
//
// The answers fill the snapshot's buffer. The next snapshot begins when the buffer is free; this code never waits for a
// file.
//
// A synchronous worker asks for the update that it has just finished, before it can push to the next one: all weights
// are of one version. Where pushes are applied on arrival each key is answered at its own time.
//
// Pure: a part of the worker's core.
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
// Returns where the answer's frame belongs, or NULL if it is not wanted.
void *snapshot_pulls_target(const struct snapshot_pulls *p, const struct wire_header *h,
                            const struct ps_frame *frame);
// Takes one answer, whose frame has been copied there. The caller keeps the frame.
void snapshot_pulls_answer(struct snapshot_pulls *p, const struct wire_header *h,
                           const struct ps_frame *frame);
// Begins the next snapshot if the buffer is free.
void snapshot_pulls_tick(struct snapshot_pulls *p);
// Whether a snapshot is being collected, or the last one is not in its file yet.
bool snapshot_pulls_busy(const struct snapshot_pulls *p);
// Forgets all open snapshots, and no longer touches them.
void snapshot_pulls_end(struct snapshot_pulls *p);

#endif
