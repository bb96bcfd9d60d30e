// The meaning of a call of a collective, for every engine and for predictions: who sends how many elements to
// whom, in which steps, and how many bytes that makes. Everything follows from the primitive's line in
// COLLECTIVE_LIST. Pure: moves nothing.
//
// Piece       What a rank gets of every sender's buffer, or, of a sum, the part that it adds up.
// Place       Where in a rank's recv the piece from a sender arrives.
// Steps       Engines that only send and receive exchange with every peer at once, step by step:
//
//                 moved    | pieces to their places |
//                 summed   | a chunk of each piece to who sums it, into staging | the next chunk | ..
//                          and, summed in pieces, | the sums to all |
//
//                 staging  | slot of one peer | slot of the next | .. | the same again |
//                                                      two buffers of size-1 slots, of a chunk each; the own piece
//                                                      is read in place
//
//             Behind each step with a chunk of the own piece lies a sum in rank order.
// Actions     In what order a step begins, ends, and is summed. Chunks go through the two buffers in turn: while one is
//             summed, the next is exchanged, and a buffer is exchanged into again behind its sum.
//
//                 exchange | 0     | 1     | 2     | 3     |         | the sums to all |
//                 sum              | 0     | 1     | 2     | 3     |
//                 buffer     first   other   first   other
//
//             Pieces that are small travel whole, through one buffer.
#ifndef STARRING_DECENTRAL_COLLECTIVE_COLLECTIVE_PLAN_H
#define STARRING_DECENTRAL_COLLECTIVE_COLLECTIVE_PLAN_H

#include "decentral/collective/collective.h"

enum collective_holder {
    HOLDER_NOBODY,
    HOLDER_ALL,
    HOLDER_ROOT,
    HOLDER_OTHERS,  // all but the root
    HOLDER_CALLER,
    HOLDER_PEER
};
enum collective_result { RESULT_MOVED, RESULT_SUMMED, RESULT_SUMMED_IN_PIECES };

// A line of COLLECTIVE_LIST.
struct collective_row {
    const char *name;
    enum collective_holder senders, receivers;
    bool n_sent, n_received;  // a block for each rank, else one
    enum collective_result result;
};
extern const struct collective_row collective_rows[COLLECTIVE_PRIMITIVES];

extern const char *const reduction_names[REDUCTIONS];  // "sum", "min", ..

static inline const char *collective_name(enum collective_primitive p) { return collective_rows[p].name; }
static inline bool collective_reduces(enum collective_primitive p) {
    return collective_rows[p].result != RESULT_MOVED;
}
static inline bool collective_rooted(enum collective_primitive p) {
    return collective_rows[p].senders == HOLDER_ROOT || collective_rows[p].receivers == HOLDER_ROOT;
}
// Whether an engine's library reduces, where the engine has one: when it is asked to, and int64 always. Integers wrap
// around, so that what they make is the same in any order. Libraries have no logical or of floats, whose result is the same in
// any order as well.
static inline bool collective_by_library(const struct collective_call *c, enum reduce_mode mode) {
    bool asked = mode == REDUCE_NATIVE && c->reduction != REDUCTION_LOR;
    return collective_reduces(c->primitive) && (asked || c->dt == DT_I64);
}
// The root sends from the buffer that the others receive into.
static inline bool collective_in_one_buffer(enum collective_primitive p) {
    const struct collective_row *r = &collective_rows[p];
    return r->senders == HOLDER_ROOT && r->receivers == HOLDER_OTHERS && !r->n_sent;
}

// A call as one rank sees it. Ranks of a plan are those of the call's team: 0 .. size-1.
struct collective_plan {
    const struct collective_call *call;  // not owned
    const struct collective_row *row;
    int rank, size;
    size_t stride;                    // elements between blocks
    size_t send_blocks, recv_blocks;  // of count elements, in this rank's buffers; 0: it has no such buffer
    // Of the steps alone:
    char *staging;
    size_t buffers;  // of staging: 1 or 2
    size_t slot;     // elements of a peer's in a buffer
    size_t chunks;   // of a sum
    size_t steps;
};
// rank of size: of all ranks.
struct collective_plan collective_plan_of(const struct collective_call *c, int rank, int size);
// Of a call's team with `size` ranks in all: how many take part, which of all ranks member i is, and which member
// a rank is.
struct collective_team collective_team_of(const struct collective_call *c, int size);
static inline int collective_member(struct collective_team t, int i) { return t.first + t.step * i; }
static inline int collective_place_in(struct collective_team t, int rank) {
    return (rank - t.first) / t.step;
}

// All of it must agree on all ranks, but for where it lies.
struct collective_staging_room {
    void *at;
    size_t bytes;        // enough for a slot of one element or more (collective_slot), if the call sums
    size_t whole_bytes;  // pieces up to this size are not cut, if they fit
};
// With steps.
struct collective_plan collective_plan_steps(const struct collective_call *c, int rank, int size,
                                             const struct collective_staging_room *staging);

// Elements [at, at + count) of a buffer.
struct collective_span {
    size_t at, count;
};
bool collective_sends(const struct collective_plan *p, int rank);
struct collective_span collective_piece(const struct collective_plan *p, int rank);
size_t collective_place(const struct collective_plan *p, int from);
size_t collective_sum_place(const struct collective_plan *p);  // of the own sum, in recv

// The elements that the rank sends to and receives from a peer in one step. A barrier's is empty.
struct collective_transfer {
    const void *send;
    void *recv;
    size_t send_bytes, recv_bytes;  // 0: nothing; the pointer does not matter
};
struct collective_transfer collective_step(const struct collective_plan *p, size_t step, int peer);
// The elements that the rank sends to itself and has to copy; nothing of a sum, and in place.
struct collective_transfer collective_own_copy(const struct collective_plan *p);
// The sum behind a step: n = 0 when there is none. Sets inputs (size), to which the result refers.
struct reduce_args collective_step_sum(const struct collective_plan *p, size_t step, const void **inputs);

// The action that is done i-th, of so many.
struct collective_action {
    enum { ACTION_BEGIN, ACTION_END, ACTION_SUM } what;  // of the step's exchange; its sum
    size_t step;
};
size_t collective_actions(const struct collective_plan *p);
struct collective_action collective_action(const struct collective_plan *p, size_t i);

// Elements of a peer's in all of the staging; 0: the staging is too small.
size_t collective_slot(size_t staging_bytes, int size, enum dtype dt);
// Bytes of staging for sums of up to max_count elements a piece, in chunks of at most so many bytes.
size_t collective_staging_bytes(int size, size_t max_count, enum dtype dt, size_t chunk_bytes);

// Payload that the rank sends and receives, in bytes.
struct collective_volume {
    size_t sent, received;
};
// And what of it goes to and comes from one of its peers; of itself nothing.
struct collective_volume collective_volume_with(const struct collective_plan *p, int peer);
struct collective_volume collective_volume(const struct collective_plan *p);
// Of a reduction that a library carries out: the formula's, because it moves the bytes itself.
struct collective_volume collective_native_volume(const struct collective_plan *p);

#endif
