// Inside of collective_threads: the hub that ranks share, how they meet, and the two ways of moving bytes.
//
// Host memory    A rank loads and adds on its stream's thread: when a meeting is over, so are the loads
//                before it. Nothing else orders them.
// Device memory  A rank only enqueues copies and sums on its own stream; nobody waits for a device. Three
//                events of a rank, its points, say how far its stream is:
//
//                stream   | READY |      | wait for peers' READY | copy, add | DONE |      | wait for DONE |
//                host             | meet |                                          | meet |
//
//                A rank marks a point (records its event) before a meeting, and its peers follow the point
//                (their streams wait for the event) after the meeting. After they have followed DONE, no
//                later work of a rank overwrites what a peer still reads. SUMMED lies between the two
//                halves of an all_reduce and has a meeting of its own. A rank marks a point again only
//                after a meeting to which every rank comes once it has followed the earlier mark.
// Small          What a call sends in host memory, up to the channel's small_bytes, is shown as a copy. Then nobody
//                waits for who still loads: the rank goes on to the next operation, and only the first meeting of that
//                lets anybody on to the one after it. So of copies and of what ranks show there are two, in turn.
// Failure        A rank that fails after the first meeting still comes to the later ones. Its device has then
//                ended what it had been given, the rank is marked as failed, and nobody follows its points;
//                it waits on the host for the DONE of its peers. Hence, whatever went wrong, memory is free
//                once a stream that ran an operation has been synchronised.
// Ownership      The hub owns channels, slots and mail; a collective owns its events. Peers use the events
//                until they have left the operation; destroying a collective waits for that.
#ifndef STARRING_DECENTRAL_COLLECTIVE_THREADS_IMPL_H
#define STARRING_DECENTRAL_COLLECTIVE_THREADS_IMPL_H

#include "decentral/collective/collective_impl.h"

enum threads_point { THREADS_READY, THREADS_SUMMED, THREADS_DONE, THREADS_POINTS };

struct collective_threads;

// What a rank shows its peers during one operation.
struct threads_show {
    struct collective_call call;  // its buffers, or copies
    uint64_t sequence;            // operations of this rank on this channel
    struct collective_threads *owner;
};

struct threads_slot {
    struct threads_show show[2];  // of every other operation
    char *copies;                 // (3, small_bytes): of what is sent, in turn, and of an all_reduce's sum
    bool present;                 // arrived at the meeting under way
    atomic_bool failed;           // for good
    uint64_t passed;  // operations whose first meeting is behind this rank, of all its collectives here
};

enum mail_state { MAIL_EMPTY, MAIL_FULL, MAIL_READING, MAIL_TAKEN };

// send/recv from one rank to another: the receiver loads from the sender's buffer.
struct threads_mail {
    _Atomic enum mail_state state;  // written with the channel's lock held
    struct collective_call call;
    struct collective_threads *sender, *receiver;
    bool failed;  // by the receiver, while reading
};

struct threads_channel {
    pthread_mutex_t lock;
    pthread_cond_t moved;
    int arrived;
    _Atomic uint64_t generation;  // meetings that are over; written with the lock held
    int size;                     // who meet here
    _Atomic uint64_t left;        // how often a rank has followed the last points of an operation
    struct threads_slot *slots;   // (size)
    size_t small_bytes;           // the largest buffer that is copied
    struct threads_mail *mail;    // (size,size): from, to
};

// The channels of ranks that meet apart from the others.
struct threads_team {
    struct collective_team team;
    struct threads_channel channels[COLLECTIVE_CHANNELS];
    struct threads_team *next;
};

struct threads_hub {
    int size;
    bool roomy;  // there is a core for every rank
    struct threads_channel channels[COLLECTIVE_CHANNELS];
    struct threads_team *teams;  // one of each; grows at the front. lock
    struct device **devices;  // (size) what ranks compute on, NULL where one has not said, or has left. lock
    bool *begins;             // (size) that the rank is on its way to its first collective. lock
    bool *told;               // (size) that the rank is slow. lock
    pthread_mutex_t lock;     // also guards why until `aborted`
    atomic_bool aborted;
    char why[COLLECTIVE_ERROR_BYTES];
};

// Where a rank meets others: all ranks, or a team.
struct threads_seat {
    struct threads_channel *channel;
    struct collective_team team;
    int rank;      // which member of the team
    bool greeted;  // its peers' memory
};
enum { THREADS_ALL, THREADS_WITHIN, THREADS_ACROSS, THREADS_SEATS };

struct collective_threads {
    struct collective_impl impl;
    struct threads_hub *hub;
    struct threads_seat seats[THREADS_SEATS];  // without groups the first alone
    // Of the call under way; peers are members of its team:
    struct threads_seat *seat;
    struct threads_channel *channel;
    int rank, size;
    int index;  // of the channel
    uint64_t sequence;
    int turn;  // of the operation under way: which show and copy
    bool small;
    const void **inputs;    // (size) of the sum under way
    struct stream *stream;  // of the operation under way
    struct device *dev;     // of the first operation's stream
    bool enqueues;          // dev's memory is not the host's
    // Then alone:
    struct event *points[THREADS_POINTS];
    int unreachable;  // the first rank whose memory kernels of this one cannot read; -1: none
};

static inline struct threads_show *threads_shown(const struct collective_threads *t, int rank) {
    return &t->channel->slots[rank].show[t->turn];
}

// ---- threads_moves.c: called by the stream's thread. On host memory points are no more than names.
// Learns the stream's device. 0, or -1 after keeping the error.
int threads_moves_open(struct collective_threads *t, struct stream *s);
// Waits until every peer has left the operations that this rank has been in; then the events go.
void threads_moves_close(struct collective_threads *t);
void threads_greet(struct collective_threads *t);  // behind the first meeting, before anything else
void threads_copy(struct collective_threads *t, void *dst, const void *src, size_t bytes);
// out(n) = t->inputs added in rank order. 0, or -1 after keeping the error.
int threads_sum(struct collective_threads *t, void *out, size_t n, enum dtype dt);
// Everything enqueued so far lies before the point. 0, or -1 after keeping the error.
int threads_mark(struct collective_threads *t, const struct collective_call *call, enum threads_point p);
// What is enqueued from now on comes after the peer's point.
void threads_follow(struct collective_threads *t, struct collective_threads *peer, enum threads_point p);
// For a rank that has failed, on the host: waits until what it has enqueued in the operation has ended (drain),
// until a peer's point has passed (await).
void threads_drain(struct collective_threads *t);
void threads_await(struct collective_threads *t, struct collective_threads *peer, enum threads_point p);

// ---- threads_hub.c
// The channel of a team, which is made where it is not there yet.
struct threads_channel *threads_hub_channel(struct threads_hub *h, struct collective_team team, int index);
// The first meeting shows the call and waits for all peers. The deadline and an abort end it. 0, or -1
// after keeping the error.
int threads_meet_begin(struct collective_threads *t, const struct collective_call *call);
// A later meeting, which only ends when every rank has come. rc: this rank's. -1 when any rank has failed,
// after keeping the error.
int threads_meet_again(struct collective_threads *t, const struct collective_call *call, int rc);
// Waits, with the channel locked, until the mail is in the wanted state; -1 with the channel unlocked.
int threads_mail_wait(struct collective_threads *t, struct threads_mail *m, enum mail_state want,
                      const struct collective_call *call);
void threads_mail_set(struct collective_threads *t, struct threads_mail *m, enum mail_state state);
// What rank `rank` computes on from now on; NULL: nothing any more.
void threads_hub_computes(struct threads_hub *h, int rank, struct device *dev);
int threads_fail_aborted(struct collective_threads *t, enum collective_primitive p);
// Keeps the text as this rank's error and aborts the hub with it. No channel may be locked. -1.
int threads_fail_and_abort(struct collective_threads *t, const char *text);
// Keeps why as the hub's error and wakes nobody; threads_hub_abort follows once no channel is locked.
void threads_hub_mark(struct threads_hub *h, const char *why);

#endif
