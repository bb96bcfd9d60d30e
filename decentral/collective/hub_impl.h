// Inside of a hub: the memory that ranks share, how they meet and wait, and the state of the collectives.
//
//     memory     | last word | rank 0: its state, and per channel: gates, slots, mail | rank 1 .. | windows |
//
// Initially the memory is all zeros: no rank has arrived. For threads it is this process's memory, for processes a
// shared segment. It contains no addresses, except those that a slot shows to threads.
//
// Gate          A barrier of a team. One word counts the completed meetings and the ranks that have arrived at the
//               next one. To arrive, to complete a meeting and to withdraw from it are one atomic exchange of that
//               word each. So a meeting is complete for all ranks or for none. A process that dies holds no lock.
// Bell          A futex. A waiting rank polls a few times and then sleeps on it; the rank that changes the awaited
//               state rings it. Sleeps are short, so that the waiting rank sees the last word and the clock.
// Host memory   Ranks show the addresses of a call's buffers, or copy the data that they send into their windows. A
//               rank loads and adds on its stream's thread: when a meeting is over, so are the loads before it.
//
//               threads     small calls use windows, so that no rank waits for a peer that still loads
//               processes   sums and small calls use windows, chunk by chunk: while some ranks load from one window, others
//                           fill the next. Large data that is only moved is read from its owner's memory through the
//                           kernel (process_vm_readv): one copy instead of two. The members of a team test in their first
//                           operation whether the kernel allows it to all of them; otherwise all data uses windows.
//
//                   show the call            | meet | load from the peers' buffers | meet | next operation
//                   copy into a window, show | meet | load from their windows             | next operation, or chunk
//
//               A channel alternates between two windows: the next meeting but one is after all loads from the first.
// Device memory Only for threads. A rank only enqueues copies and sums on its own stream; it does not wait for a
//               device. Three events of a rank, its points, mark the progress of its stream:
//
//                   stream   | READY |      | wait for peers' READY | copy, add | DONE |      | wait for DONE |
//                   host             | meet |                                          | meet |
//
//               A rank marks a point (records its event) before a meeting, and its peers follow the point (their streams
//               wait for the event) after the meeting. After they have followed DONE, no later work of a rank overwrites
//               data that a peer still reads. SUMMED is between the two halves of an all_reduce and has a meeting of its
//               own. A rank marks a point again only after a meeting to which every rank comes after it has followed the
//               earlier mark.
// Failure       A rank that fails after the first meeting still comes to the later ones. Its device has then finished
//               all work, the rank is marked as failed, and no peer follows its points; it waits on the host for the
//               DONE of its peers. So after any failure, memory is free once a stream that ran an operation has been
//               synchronised.
// Ownership     The hub owns the memory of threads; a collective owns its events. Peers use the events until they have
//               left the operation; destroying a collective waits for that.
#ifndef STARRING_DECENTRAL_COLLECTIVE_HUB_IMPL_H
#define STARRING_DECENTRAL_COLLECTIVE_HUB_IMPL_H

#include "decentral/collective/collective_impl.h"
#include "decentral/collective/hub.h"
#include "decentral/collective/rank_lives.h"
#include "kernels/backend.h"

enum hub_point { HUB_READY, HUB_SUMMED, HUB_DONE, HUB_POINTS };

struct collective_hub;

// ---------------------------------------------------------------- shared memory of the ranks
struct hub_bell {
    _Atomic uint32_t rung, sleepers;
};

struct hub_gate {
    _Atomic uint64_t word;  // completed meetings << 32 | ranks that have arrived at the next one
    struct hub_bell bell;
};

// The call that a rank shows its peers during one operation. For a call in chunks, count is that of the whole call.
struct hub_show {
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
    struct hub_gate gate;     // of the team whose first member is this rank
    struct hub_show show[2];  // of operations with even and odd numbers
    _Atomic uint64_t coming;  // 1 + the meeting at which this rank arrived last
    _Atomic uint64_t left;    // how often this rank has followed the last points of an operation
    _Atomic bool failed;      // never cleared
    _Atomic bool reads;       // processes: this rank can read the memory of every other member of the team
    uint64_t passed;  // operations whose first meeting this rank has completed, in all its collectives here
};

// The state of send and recv, in the sender's memory. Threads load from its buffer; processes use the two halves of a
// window alternately.
enum mail_state { MAIL_EMPTY, MAIL_FULL, MAIL_READING, MAIL_TAKEN };
struct hub_mail {
    _Atomic uint32_t state;  // enum mail_state
    _Atomic int to;
    enum dtype dt;
    bool enqueues, failed;  // failed: the receiver failed while reading
    size_t count;
    _Atomic uint64_t sent, taken;  // chunks
    struct hub_bell bell;
    // Only for threads:
    const void *send;
    struct collective_hub *sender, *receiver;
};

// The teams of a rank: all ranks, its group, and the ranks at its place in the other groups.
enum { HUB_ALL, HUB_WITHIN, HUB_ACROSS, HUB_SEATS };

struct hub_line {
    struct hub_slot slots[HUB_SEATS];
    struct hub_mail mail;
    _Alignas(64) _Atomic int core;  // 1 + the core on which this rank's stream last ran; waits read it often
};

struct hub_rank {
    // Only for processes:
    _Atomic pid_t pid;     // 0: not joined yet
    const void *own_word;  // a word in its memory, with which others test whether they can read it
    struct hub_line lines[COLLECTIVE_CHANNELS];
};

struct hub_memory {
    struct last_word end;
    _Atomic uint16_t signs[HUB_PROCESSES_MAX];  // heartbeats of processes (shared/fabric/meet.h)
    struct hub_rank ranks[];                    // (size)
};

// The value that others read at hub_rank.own_word if they reach that rank's memory and no other's.
static inline uint64_t hub_own_word(pid_t pid, int rank) {
    return (uint64_t)pid << 32 | (uint32_t)(rank + 1);
}

// Windows of a rank and channel: two alternating ones per seat, one for the sums of an all_reduce, one for mail.
enum { HUB_WINDOW_SUMS = 2 * HUB_SEATS, HUB_WINDOW_MAIL, HUB_WINDOWS };

// ---------------------------------------------------------------- a process's handle
struct hub {
    int size;
    bool processes;
    bool roomy;  // every rank can have a core
    struct hub_memory *memory;
    char *windows;
    size_t window_bytes;
    struct rank_lives *lives;  // not owned for processes
    uint64_t own_word;         // only for processes
};

struct hub_seat {
    struct hub_gate *gate;  // NULL: no such team
    struct collective_team team;
    int rank;      // index among the members of the team
    bool greeted;  // the members' memory has been tested
    bool direct;   // its members can read each other's memory
};

struct collective_hub {
    struct collective_impl impl;
    struct hub *hub;
    struct hub_seat seats[HUB_SEATS];  // without groups only the first
    int index;                         // of the channel
    struct collective_room host;       // page-locked memory; none: device memory is the host's
    // The current call; peers are members of its team:
    int seat_kind;
    struct hub_seat *seat;
    int rank, size;
    size_t count;  // of the whole call
    uint64_t sequence;
    int turn;               // which show and window the operation uses
    bool windows;           // the call uses windows
    const void **inputs;    // (size) of the current sum
    struct stream *stream;  // of the current operation
    struct device *dev;     // of the first operation's stream
    bool enqueues;          // dev's memory is not the host's
    // Only if enqueues:
    struct event *points[HUB_POINTS];
    int unreachable;  // the first rank whose memory this rank's kernels cannot read; -1: none
};

static inline struct hub_line *hub_line(const struct hub *h, int rank, int channel) {
    return &h->memory->ranks[rank].lines[channel];
}
// For a member of the current call's team.
static inline struct hub_slot *hub_slot(const struct collective_hub *t, int member) {
    int rank = collective_member(t->seat->team, member);
    return &hub_line(t->hub, rank, t->index)->slots[t->seat_kind];
}
static inline const struct hub_show *hub_shown(const struct collective_hub *t, int member) {
    return &hub_slot(t, member)->show[t->turn];
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
// The first meeting of an operation waits for all peers. The deadline and an abort end it. Returns 0, or -1 after
// keeping the error.
int hub_meet_first(struct collective_hub *t, enum collective_primitive p);
// A later meeting, which ends only when every rank has arrived. rc: this rank's result. Returns -1 if any rank has
// failed, after keeping the error.
int hub_meet_again(struct collective_hub *t, enum collective_primitive p, int rc);
// Waits until over(arg) holds; a change of its state rings the bell. peer: the rank that it waits for, among all
// ranks; only this rank is named if it does not come. Returns 0, or -1 after keeping the error: an abort, or the
// deadline.
int hub_wait_for(struct collective_hub *t, struct hub_bell *bell, bool (*over)(const void *arg),
                 const void *arg, enum collective_primitive p, int peer);
// The same without deadline and abort.
void hub_wait_on(struct collective_hub *t, struct hub_bell *bell, bool (*over)(const void *arg),
                 const void *arg);
void hub_ring(const struct hub *h, struct hub_bell *b);
int hub_fail_aborted(struct collective_hub *t, enum collective_primitive p);
// Keeps the text as this rank's error and aborts the hub with it. Returns -1.
int hub_fail_and_abort(struct collective_hub *t, const char *text);

#endif
