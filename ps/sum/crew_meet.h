// How the members of a crew (crew.h) find each other's memory. Each makes a board in a segment of its own and tells
// all workers where it is, as numbers in a gather, for the scheduler carries these already; the board names the
// segment that the gradients lie in:
//
//     | head | name of the gradients' segment | units | keys |
//     0      SEGMENT_HEAD
//
// Order       open, a gather of CREW_NUMBERS for each worker, meet; then the crew is complete and stays as it is.
// Threads     One at a time. Nothing here blocks.
#ifndef STARRING_PS_SUM_CREW_MEET_H
#define STARRING_PS_SUM_CREW_MEET_H

#include "ps/sum/crew.h"
#include "shared/core/segment.h"

#define CREW_NUMBERS SEGMENT_NUMBERS

struct crew_options {
    const struct config *config;
    const struct layout *layout;
    const struct shard_map *map;
    const struct segment *grads;  // the worker's own: outlives the place
    const uint64_t *grad_at;      // (units)
    struct wire_count *wire;
    int rank;
};

struct crew_place {
    struct crew_options o;
    struct segment *boards, *grads;  // (crew.size) each; this worker's grads stay empty
    struct crew crew;
};

// Bytes of a board, whole pages.
size_t crew_board_bytes(int units, int64_t keys);
// Makes this worker's board; numbers (CREW_NUMBERS) say where it is. 0, or -1 after logging.
int crew_open(struct crew_place *p, const struct crew_options *o, double *numbers);
// numbers (workers * CREW_NUMBERS) of all workers. 0, or -1 after logging who cannot be reached and why.
int crew_meet(struct crew_place *p, const double *numbers);
void crew_close(struct crew_place *p);  // zeroed or opened

#endif
