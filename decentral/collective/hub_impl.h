// Inside of a hub: the memory that ranks share, how they wait, and the state of the collectives.
//
//     memory     | end reason | rank 0: its state, and per channel: slots of its teams, message | rank 1 .. | windows |
//
// Initially the memory is all zeros: no rank has arrived. For threads it is this process's memory, for processes a
// shared segment. It contains no addresses, except those that threads publish for each other.
//
// Barrier       Of a team. One atomic state counts the completed phases and the ranks that have arrived at the next one.
//               To arrive, to complete a phase and to withdraw from it are one atomic exchange of the state each. So a
//               phase is complete for all ranks or for none. A process that dies holds no lock.
// Futex         A waiting rank polls a few times and then sleeps on a futex; the rank that changes the awaited state
//               wakes it. Sleeps are short, so that the waiting rank sees the end reason and the clock.
// Host memory   Ranks publish the addresses of a call's buffers, or copy the data that they send into their windows. A
//               rank loads and adds on its stream's thread: when a barrier is complete, so are the loads before it.
//
//               threads     small calls use windows, so that no rank waits for a peer that still loads
//               processes   sums and small calls use windows, chunk by chunk: while some ranks load from one window, others
//                           fill the next. Large data that is only moved is read from its owner's memory through the
//                           kernel (process_vm_readv): one copy instead of two. The members of a team test in their first
//                           operation whether the kernel allows it to all of them; otherwise all data uses windows.
//
//                   publish the call             | barrier | load from the peers' buffers | barrier | next operation
//                   copy into a window, publish  | barrier | load from their windows                | next operation, or chunk
//
//               A channel alternates between two windows: the next barrier but one is after all loads from the first.
// Device memory Only for threads. A rank only enqueues copies and sums on its own stream; it does not wait for a
//               device. Three events of a rank, its points, mark the progress of its stream:
//
//                   stream   | READY |         | wait for peers' READY | copy, add | DONE |         | wait for DONE |
//                   host             | barrier |                                          | barrier |
//
//               A rank marks a point (records its event) before a barrier, and its peers follow the point (their streams
//               wait for the event) after the barrier. After they have followed DONE, no later work of a rank overwrites
//               data that a peer still reads. SUMMED is between the two halves of an all_reduce and has a barrier of its
//               own. A rank marks a point again only after a barrier at which every rank arrives after it has followed
//               the earlier mark.
// Failure       A rank that fails after the first barrier still arrives at the later ones. Its device has then finished
//               all work, the rank is marked as failed, and no peer follows its points; it waits on the host for the
//               DONE of its peers. So after any failure, memory is free once a stream that ran an operation has been
//               synchronised.
// Ownership     The hub owns the memory of threads; a collective owns its events. Peers use the events until they have
//               left the operation; destroying a collective waits for that.
#ifndef STARRING_DECENTRAL_COLLECTIVE_HUB_IMPL_H
#define STARRING_DECENTRAL_COLLECTIVE_HUB_IMPL_H

#include "decentral/collective/collective_impl.h"
#include "decentral/collective/hub.h"
#include "decentral/collective/rank_liveness.h"
#include "kernels/backend.h"

enum hub_point { HUB_READY, HUB_SUMMED, HUB_DONE, HUB_POINTS };

struct collective_hub;

// ---------------------------------------------------------------- shared memory of the ranks
struct hub_futex {
    _Atomic uint32_t wakes, sleepers;
};

struct hub_barrier {
    _Atomic uint64_t state;  // completed phases << 32 | ranks that have arrived at the next one
    struct hub_futex futex;
};

// The call that a rank publishes to its peers during one operation. For a call in chunks, count is that of the whole call.
struct hub_call {
    enum collective_primitive primitive;
    enum dtype dt;
    int root;
    enum reduction reduction;
    bool enqueues;      // the buffers are device memory
    size_t count;       // elements of a block
    uint64_t sequence;  // operations of this rank on this channel
    const void *send;
    void *recv;
    struct collective_hub *owner;  // only for threads
};

struct hub_slot {
    struct hub_barrier barrier;  // the barrier of the team whose first member is this rank
    struct hub_call calls[2];    // calls of operations with even and odd numbers
    _Atomic uint64_t arrived;    // 1 + the phase at which this rank arrived last
    _Atomic uint64_t left;       // how often this rank has followed the last points of an operation
    _Atomic bool failed;         // set once, and never cleared
    _Atomic bool reads;          // processes: this rank can read the memory of every other member of the team
    uint64_t entered;  // operations whose first barrier this rank has completed, in all its collectives here
};

// A message of send and recv, in the sender's memory. Threads load from its buffer; processes use the two halves of a
// window alternately.
enum message_state { MESSAGE_EMPTY, MESSAGE_FULL, MESSAGE_READING, MESSAGE_TAKEN };
struct hub_message {
    _Atomic uint32_t state;  // enum message_state
    _Atomic int to;
    enum dtype dt;
    bool enqueues, failed;  // failed: the receiver failed while reading
    size_t count;
    _Atomic uint64_t sent, taken;  // number of chunks
    struct hub_futex futex;
    // Only for threads:
    const void *send;
    struct collective_hub *sender, *receiver;
};

// The teams of a rank: all ranks, its group, and the ranks with its index in the other groups.
enum { HUB_ALL, HUB_WITHIN, HUB_ACROSS, HUB_TEAMS };

struct hub_channel {
    struct hub_slot slots[HUB_TEAMS];
    struct hub_message message;
    _Alignas(64) _Atomic int core;  // 1 + the core on which this rank's stream last ran; waits read it often
};

struct hub_rank {
    // Only for processes:
    _Atomic pid_t pid;  // 0: not joined yet
    const void *probe;  // a value in its memory, with which others test whether they can read it
    struct hub_channel channels[COLLECTIVE_CHANNELS];
};

struct hub_memory {
    struct end_reason end;
    _Atomic uint16_t heartbeats[HUB_PROCESSES_MAX];  // heartbeats of processes (shared/fabric/meet.h)
    struct hub_rank ranks[];                         // (size)
};

// The value that others read at hub_rank.probe if they reach that rank's memory and no other's.
static inline uint64_t hub_probe_value(pid_t pid, int rank) {
    return (uint64_t)pid << 32 | (uint32_t)(rank + 1);
}

// Windows of a rank and channel: two alternating ones per team, one for the sums of an all_reduce, one for messages.
enum { HUB_WINDOW_SUMS = 2 * HUB_TEAMS, HUB_WINDOW_MESSAGE, HUB_WINDOWS };

// ---------------------------------------------------------------- a process's handle
struct hub {
    int size;
    bool processes;
    bool core_each;  // every rank can have a core
    struct hub_memory *memory;
    char *windows;
    size_t window_bytes;
    struct rank_liveness *lives;  // not owned for processes
    uint64_t probe;               // only for processes
};

struct hub_team {
    struct hub_barrier *barrier;  // NULL: no such team
    struct collective_team ranks;
    int rank;     // index among the members of the team
    bool probed;  // the members' memory has been tested
    bool direct;  // all members can read each other's memory
};

struct collective_hub {
    struct collective_impl impl;
    struct hub *hub;
    struct hub_team teams[HUB_TEAMS];  // without groups only HUB_ALL is used
    // The current call; peers are members of its team:
    int team_kind;
    struct hub_team *team;
    int rank, size;
    size_t count;  // elements of the whole call
    uint64_t sequence;
    int parity;             // which calls and window the operation uses
    bool windows;           // the call uses windows
    const void **inputs;    // (size) of the current sum
    struct stream *stream;  // the current operation's stream
    struct device *dev;     // the device of the first operation's stream
    bool enqueues;          // dev's memory is not the host's
    // Only if enqueues:
    struct event *points[HUB_POINTS];
    int unreachable;  // the first rank whose memory this rank's kernels cannot read; -1: none
};

static inline struct hub_channel *hub_channel(const struct hub *h, int rank, int channel) {
    return &h->memory->ranks[rank].channels[channel];
}
// Returns the slot of a member of the current call's team.
static inline struct hub_slot *hub_slot(const struct collective_hub *t, int member) {
    int rank = collective_member(t->team->ranks, member);
    return &hub_channel(t->hub, rank, t->impl.channel)->slots[t->team_kind];
}
static inline const struct hub_call *hub_call_of(const struct collective_hub *t, int member) {
    return &hub_slot(t, member)->calls[t->parity];
}
static inline char *hub_window(const struct hub *h, int rank, int channel, int window) {
    size_t at = ((size_t)rank * COLLECTIVE_CHANNELS + (size_t)channel) * HUB_WINDOWS + (size_t)window;
    return h->windows + at * h->window_bytes;
}

// ---- collective_hub.c
// Processes: copies from the rank's memory. Returns 0, or -1 after keeping the error.
int hub_read(struct collective_hub *t, enum collective_primitive p, int rank, void *dst, const void *src,
             size_t bytes);

// ---- hub.c
// The first barrier of an operation waits for all peers. The deadline and an abort end it. Returns 0, or -1 after
// keeping the error.
int hub_barrier_first(struct collective_hub *t, enum collective_primitive p);
// A later barrier, which ends only when every rank has arrived. rc: this rank's result. Returns -1 if any rank has
// failed, after keeping the error.
int hub_barrier_again(struct collective_hub *t, enum collective_primitive p, int rc);
// Waits until over(arg) holds. Whoever changes its state wakes the futex. peer: the rank that it waits for, among all
// ranks; only this rank is named if it does not come. Returns 0, or -1 after keeping the error: an abort, or the
// deadline.
int hub_wait_for(struct collective_hub *t, struct hub_futex *futex, bool (*over)(const void *arg),
                 const void *arg, enum collective_primitive p, int peer);
// The same without deadline and abort.
void hub_wait_on(struct collective_hub *t, struct hub_futex *futex, bool (*over)(const void *arg),
                 const void *arg);
void hub_wake(const struct hub *h, struct hub_futex *b);
// Keeps the text as this rank's error and aborts the hub with it. Returns -1.
int hub_fail_and_abort(struct collective_hub *t, const char *text);

#endif
