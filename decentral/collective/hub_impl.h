// Inside of a hub: the memory that ranks share, how they meet and wait, and the collectives' own state.
//
//     memory     | last word | rank 0: its state, and per channel: gates, slots, mail | rank 1 .. | windows |
//
// All zeros are a hub in which nobody has come yet. Of threads it is this process's memory, of processes a segment; nothing
// in it is an address, but for what a slot shows to threads.
//
// Gate          Where a team meets: one word counts the meetings that are over and those who have come to the next one. To
//               come, to complete a meeting and to withdraw from it are one exchange of that word each, so that a meeting is
//               either complete for all or for nobody. A process that dies holds no lock.
// Bell          Who waits asks a few times and then sleeps on a futex, which is rung by who changes what it waits for.
//               Sleep ends every little while by itself, to see the last word and the clock.
// Host memory   Ranks show where the buffers of a call lie, or copy what they send into their windows. A rank loads and adds on
//               its stream's thread: when a meeting is over, so are the loads before it.
//
//               threads     small calls go through windows, so that nobody waits for a peer that still loads
//               processes   sums and small calls go through windows, chunk by chunk: while some load from one, others fill the
//                           next. What is large and only moved is read from its owner's memory through the kernel
//                           (process_vm_readv): one copy in place of two. The members of a team find out in their first
//                           operation whether the kernel lets all of them; otherwise all goes through windows.
//
//                   show the call            | meet | load from the peers' buffers | meet | next operation
//                   copy into a window, show | meet | load from their windows             | next operation, or chunk
//
//               There are two windows of a channel, in turn: the next meeting but one is behind all loads from the first.
// Device memory Threads alone. A rank only enqueues copies and sums on its own stream; nobody waits for a device. Three
//               events of a rank, its points, say how far its stream is:
//
//                   stream   | READY |      | wait for peers' READY | copy, add | DONE |      | wait for DONE |
//                   host             | meet |                                          | meet |
//
//               A rank marks a point (records its event) before a meeting, and its peers follow the point (their streams
//               wait for the event) after the meeting. After they have followed DONE, no later work of a rank overwrites what
//               a peer still reads. SUMMED lies between the two halves of an all_reduce and has a meeting of its own. A rank
//               marks a point again only after a meeting to which every rank comes once it has followed the earlier mark.
// Failure       A rank that fails after the first meeting still comes to the later ones. Its device has then ended what it had
//               been given, the rank is marked as failed, and nobody follows its points; it waits on the host for the DONE of
//               its peers. Hence, whatever went wrong, memory is free once a stream that ran an operation has been
//               synchronised.
// Ownership     The hub owns the memory of threads; a collective owns its events. Peers use the events until they have left the
//               operation; destroying a collective waits for that.
#ifndef STARRING_DECENTRAL_COLLECTIVE_HUB_IMPL_H
#define STARRING_DECENTRAL_COLLECTIVE_HUB_IMPL_H

#include "decentral/collective/collective_impl.h"
#include "decentral/collective/hub.h"
#include "decentral/collective/rank_lives.h"
#include "kernels/backend.h"

enum hub_point { HUB_READY, HUB_SUMMED, HUB_DONE, HUB_POINTS };

struct collective_hub;

// ---------------------------------------------------------------- what ranks share
struct hub_bell {
    _Atomic uint32_t rung, sleepers;
};

struct hub_gate {
    _Atomic uint64_t word;  // meetings that are over << 32 | who have come to the next one
    struct hub_bell bell;
};

// The facts that a rank shows its peers during one operation. Of a call in chunks: count is the whole's.
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
    struct collective_hub *owner;  // of threads
};

struct hub_slot {
    struct hub_gate gate;     // of the team whose first member this rank is
    struct hub_show show[2];  // of every other operation
    _Atomic uint64_t coming;  // 1 + the meeting that this rank has come to last
    _Atomic uint64_t left;    // how often this rank has followed the last points of an operation
    _Atomic bool failed;      // for good
    _Atomic bool reads;       // of processes: this rank can read the memory of every other one of the team
    uint64_t passed;  // operations whose first meeting is behind this rank, of all its collectives here
};

// send/recv: the sender's. Threads load from its buffer; processes' bytes go through the halves of a window in turn.
enum mail_state { MAIL_EMPTY, MAIL_FULL, MAIL_READING, MAIL_TAKEN };
struct hub_mail {
    _Atomic uint32_t state;  // enum mail_state
    _Atomic int to;
    enum dtype dt;
    bool enqueues, failed;  // failed: by the receiver, while reading
    size_t count;
    _Atomic uint64_t sent, taken;  // chunks
    struct hub_bell bell;
    // Of threads:
    const void *send;
    struct collective_hub *sender, *receiver;
};

// Where a rank meets others: all ranks, its group, and those at its place in the other groups.
enum { HUB_ALL, HUB_WITHIN, HUB_ACROSS, HUB_SEATS };

struct hub_line {
    struct hub_slot slots[HUB_SEATS];
    struct hub_mail mail;
    _Alignas(
        64) _Atomic int core;  // 1 + the one that this rank's stream came on last; waits look at it again and again
};

struct hub_rank {
    // Of processes:
    _Atomic pid_t
        pid;  // where others find its memory, and a word in it that is its own; 0: it has not joined yet
    const void *own_word;
    struct hub_line lines[COLLECTIVE_CHANNELS];
};

struct hub_memory {
    struct last_word end;
    _Atomic uint16_t signs[HUB_PROCESSES_MAX];  // of life, of processes (shared/fabric/meet.h)
    struct hub_rank ranks[];                    // (size)
};

// The word that others find at hub_rank.own_word where they read the rank's memory and nobody else's.
static inline uint64_t hub_own_word(pid_t pid, int rank) {
    return (uint64_t)pid << 32 | (uint32_t)(rank + 1);
}

// Windows of a rank and channel: two of each seat in turn, one of an all_reduce's sums, one of mail.
enum { HUB_WINDOW_SUMS = 2 * HUB_SEATS, HUB_WINDOW_MAIL, HUB_WINDOWS };

// ---------------------------------------------------------------- a process's handle
struct hub {
    int size;
    bool processes;
    bool roomy;  // there is a core for every rank
    struct hub_memory *memory;
    char *windows;
    size_t window_bytes;
    struct rank_lives *lives;  // of processes not owned
    uint64_t own_word;         // of processes
};

struct hub_seat {
    struct hub_gate *gate;  // NULL: no such team
    struct collective_team team;
    int rank;      // which member of the team
    bool greeted;  // its peers' memory
    bool direct;   // its members can read each other's
};

struct collective_hub {
    struct collective_impl impl;
    struct hub *hub;
    struct hub_seat seats[HUB_SEATS];  // without groups the first alone
    int index;                         // of the channel
    struct collective_room host;       // page-locked memory; none: device memory is the host's
    // Of the call under way; peers are members of its team:
    int seat_kind;
    struct hub_seat *seat;
    int rank, size;
    size_t count;  // of the whole call
    uint64_t sequence;
    int turn;               // of the operation: which show and window
    bool windows;           // its bytes go through windows
    const void **inputs;    // (size) of the sum under way
    struct stream *stream;  // of the operation under way
    struct device *dev;     // of the first operation's stream
    bool enqueues;          // dev's memory is not the host's
    // Then alone:
    struct event *points[HUB_POINTS];
    int unreachable;  // the first rank whose memory kernels of this one cannot read; -1: none
};

static inline struct hub_line *hub_line(const struct hub *h, int rank, int channel) {
    return &h->memory->ranks[rank].lines[channel];
}
// Of a member of the team of the call under way.
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
// Of processes: copies from the rank's memory. 0, or -1 after keeping the error.
int hub_read(struct collective_hub *t, enum collective_primitive p, int rank, void *dst, const void *src,
             size_t bytes);

// ---- hub.c
// The first meeting of an operation waits for all peers. The deadline and an abort end it. 0, or -1 after keeping the error.
int hub_meet_first(struct collective_hub *t, enum collective_primitive p);
// A later meeting, which ends when every rank has come, and not before. rc: this rank's. -1 when any rank has failed, after
// keeping the error.
int hub_meet_again(struct collective_hub *t, enum collective_primitive p, int rc);
// Waits until over(arg) holds, whose change rings the bell. peer: of all ranks, whom it waits for, who alone is named where
// it does not come. 0, or -1 after keeping the error: an abort, or the deadline.
int hub_wait_for(struct collective_hub *t, struct hub_bell *bell, bool (*over)(const void *arg),
                 const void *arg, enum collective_primitive p, int peer);
// The same without an end.
void hub_wait_on(struct collective_hub *t, struct hub_bell *bell, bool (*over)(const void *arg),
                 const void *arg);
void hub_ring(const struct hub *h, struct hub_bell *b);
int hub_fail_aborted(struct collective_hub *t, enum collective_primitive p);
// Keeps the text as this rank's error and aborts the hub with it. -1.
int hub_fail_and_abort(struct collective_hub *t, const char *text);

#endif
