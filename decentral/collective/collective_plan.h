// The meaning of a call of a collective, for every engine and for predictions: which ranks send how many elements to
// which ranks, in which steps, and how many bytes. All of it follows from the primitive's line in COLLECTIVE_LIST.
// Pure: moves nothing.
//
// Piece       The elements of every sender's buffer that one rank receives, or sums.
// Offset      The offset in a rank's recv at which the piece from a sender arrives.
// Steps       Engines that only send and receive exchange with all peers at once, step by step:
//
//                 moved    | each piece to its place |
//                 summed   | a chunk of each piece to the rank that sums it, in staging | the next chunk | ..
//                          and, summed in pieces, | the sums to all |
//
//                 staging  | slot of one peer | slot of the next | .. | the second buffer: the same |
//                                                      two buffers of size-1 slots, one chunk per slot; the own piece
//                                                      is read in place
//
//             After each step with a chunk of the own piece follows a sum in rank order.
// Actions     The order in which steps begin, end, and are summed. Chunks alternate between the two buffers: while one
//             is summed, the next is exchanged. A buffer is reused after its sum.
//
//                 exchange | 0     | 1     | 2     | 3     |         | the sums to all |
//                 sum              | 0     | 1     | 2     | 3     |
//                 buffer     first   other   first   other
//
//             Small pieces are sent whole, through one buffer.
#ifndef STARRING_DECENTRAL_COLLECTIVE_COLLECTIVE_PLAN_H
#define STARRING_DECENTRAL_COLLECTIVE_COLLECTIVE_PLAN_H

#include "decentral/collective/collective.h"

enum collective_holder {
    HOLDER_NOBODY,
    HOLDER_ALL,
    HOLDER_ROOT,
    HOLDER_OTHERS,  // all ranks except the root
    HOLDER_CALLER,
    HOLDER_PEER
};
enum collective_result { RESULT_MOVED, RESULT_SUMMED, RESULT_SUMMED_IN_PIECES };

// A line of COLLECTIVE_LIST.
struct collective_row {
    const char *name;
    enum collective_holder senders, receivers;
    bool n_sent, n_received;  // the buffer has one block per rank; else one block
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
// Returns whether the library of an engine that has one reduces: in native mode, and int64 always. Integers wrap
// around, so any order gives the same result. Libraries have no logical or of floats.
static inline bool collective_by_library(const struct collective_call *c, enum reduce_mode mode) {
    bool asked = mode == REDUCE_NATIVE && c->reduction != REDUCTION_LOR;
    return collective_reduces(c->primitive) && (asked || c->dt == DT_I64);
}
// Returns whether all ranks pass one buffer, from which the root sends and in which the others receive.
static inline bool collective_in_one_buffer(enum collective_primitive p) {
    const struct collective_row *r = &collective_rows[p];
    return r->senders == HOLDER_ROOT && r->receivers == HOLDER_OTHERS && !r->n_sent;
}

// The plan of one rank for a call. Its ranks are positions in the call's team: 0 .. size-1.
struct collective_plan {
    const struct collective_call *call;  // not owned
    const struct collective_row *row;
    int rank, size;
    size_t stride;  // elements between blocks
    // Blocks of `count` elements in this rank's buffers; 0: it has no such buffer.
    size_t send_blocks, recv_blocks;
    // Only with steps (collective_plan_steps):
    char *staging;
    size_t buffers;  // buffers in the staging: 1 or 2
    size_t slot;     // elements of one peer's slot in a buffer
    size_t chunks;   // chunks of a sum
    size_t steps;
};
// rank, size: among all ranks.
struct collective_plan collective_plan_of(const struct collective_call *c, int rank, int size);
// collective_team_of returns the call's team of `size` ranks; collective_member the rank of member i;
// collective_member_of the member that a rank is.
struct collective_team collective_team_of(const struct collective_call *c, int size);
static inline int collective_member(struct collective_team t, int i) { return t.first + t.step * i; }
static inline int collective_member_of(struct collective_team t, int rank) {
    return (rank - t.first) / t.step;
}

// All fields except `at` must agree on all ranks.
struct collective_staging_room {
    void *at;
    size_t bytes;        // if the call sums: enough for slots of at least one element (collective_slot)
    size_t whole_bytes;  // pieces up to this size are not split, if they fit
};
// Does the same as collective_plan_of, and plans the steps.
struct collective_plan collective_plan_steps(const struct collective_call *c, int rank, int size,
                                             const struct collective_staging_room *staging);

// Elements [at, at + count) of a buffer.
struct collective_span {
    size_t at, count;
};
bool collective_sends(const struct collective_plan *p, int rank);
struct collective_span collective_piece(const struct collective_plan *p, int rank);
size_t collective_recv_offset(const struct collective_plan *p, int from);
size_t collective_sum_offset(const struct collective_plan *p);  // Returns the offset of the own sum in recv.

// The elements that the rank sends to and receives from a peer in one step; empty for a barrier.
struct collective_transfer {
    const void *send;
    void *recv;
    size_t send_bytes, recv_bytes;  // 0: nothing; the pointer does not matter
};
struct collective_transfer collective_step(const struct collective_plan *p, size_t step, int peer);
// Returns the elements that the rank must copy to itself; none for a sum, or in place.
struct collective_transfer collective_own_copy(const struct collective_plan *p);
// Returns the sum after a step; n = 0: none. Sets inputs (size), to which the result points.
struct reduce_args collective_step_sum(const struct collective_plan *p, size_t step, const void **inputs);

// The number of actions, and action i in their order.
struct collective_action {
    enum { ACTION_BEGIN, ACTION_END, ACTION_SUM } what;  // begin or end the step's exchange; its sum
    size_t step;
};
size_t collective_actions(const struct collective_plan *p);
struct collective_action collective_action(const struct collective_plan *p, size_t i);

// Returns the elements per peer that the whole staging can hold; 0: the staging is too small.
size_t collective_slot(size_t staging_bytes, int size, enum dtype dt);
// Returns the bytes of staging for sums of pieces of up to max_count elements, in chunks of at most chunk_bytes.
size_t collective_staging_bytes(int size, size_t max_count, enum dtype dt, size_t chunk_bytes);

// Payload that the rank sends and receives, in bytes.
struct collective_volume {
    size_t sent, received;
};
// Returns the volume to and from one peer; 0 for the rank itself.
struct collective_volume collective_volume_with(const struct collective_plan *p, int peer);
struct collective_volume collective_volume(const struct collective_plan *p);
// Returns the formula's volume for a reduction by a library, whose bytes cannot be counted.
struct collective_volume collective_native_volume(const struct collective_plan *p);

// ---------------------------------------------------------------- groups
// Groups of g consecutive ranks, for example the ranks of one host: how a call of all ranks is split.
//
// Order       A sum is an fp32 sum in rank order within each group, rounded once to the type. Then follows an fp32 sum
//             of the groups' sums in group order, rounded once (docs/ring.md, Groups). g = 1 and g = N are the sum
//             over all ranks.
// Legs        A leg is one of the calls that a call is split into. Rank r = k*g + i has index i in group k. A buffer has
//             one block for each of the N = G*g ranks:
//
//                 reduce_scatter   within | blocks of group 0 | blocks of group 1 | ..    G calls: the group's sum of
//                                         | 0 .. i .. g-1     | g .. g+i ..       |       each block with index i
//                                  across | i | g+i | 2g+i | ..                           one call: their sum over
//                                                                                         the groups
//                 all_gather       across, then within: the same in reverse
//
//             The owner of a block is the same as without groups. A rank sends N-1 blocks as before, but only G-1 of
//             them to other groups instead of N-g: the bytes that leave a group are divided by g. The number of
//             messages stays.
// Memory      None: the sums of the first legs overwrite `send`, at the rank's index in each group.
// All other primitives run as without groups.
// The ranks of the rank's group; the ranks with the rank's index in all groups.
struct collective_team collective_within(int rank, int group);
struct collective_team collective_across(int rank, int size, int group);

// The number of legs of a rank's call, and leg k. rank of size; group divides size, 0: no groups.
int collective_legs(const struct collective_call *c, int size, int group);
struct collective_call collective_leg(const struct collective_call *c, int rank, int size, int group, int k);

#endif
