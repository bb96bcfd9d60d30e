// Where the ranks of a ring tell each other what an engine needs before it is there: over collectives that are there already
// (threads', shared memory's, MPI's or tcp's), on a CPU stream of its own.
#ifndef STARRING_DECENTRAL_COLLECTIVE_RING_MEETING_H
#define STARRING_DECENTRAL_COLLECTIVE_RING_MEETING_H

#include "decentral/collective/collective.h"

struct ring_meeting {
    struct device *cpu;
    struct stream *stream;
    struct collective *under;  // whose abort is all ranks', as far as it can
};
// m: zeros. 0, or -1 after logging.
int ring_meeting_open(struct ring_meeting *m, const struct collective_source *under, double deadline_s);
void ring_meeting_close(struct ring_meeting *m);  // after what uses it; of zeros: nothing
// All ranks call it in the same order. After it, bytes hold what root's held. 0, or -1 after saying why. Blocks,
// up to the deadline.
int ring_meeting_share(struct ring_meeting *m, int root, void *bytes, size_t size);

#endif
