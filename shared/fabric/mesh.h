// The connections between all processes of a group: one per pair, which carries all messages between the two. Messages
// use lanes (shared/fabric/lanes.h). Short words are sent too; a word may be lost if its receiver has failed.
//
//     rank r   listens; connects to all ranks below r; is connected to by all ranks above it
//     mesh_send, mesh_receive, mesh_turn     one message each way with each peer of a lane is in flight
//     mesh_wait                              until they are done
//
// Trust       With the job's key all is encrypted, and every process with the key is a rank. Without it, a rank sends in
//             clear the token that the other rank has published at the rendezvous; the rendezvous decides who is a
//             rank.
// Moving      Every waiting thread moves the messages of all lanes. While no thread waits, mesh_look is called now and
//             then and does it.
// Ownership   The caller owns the buffers, and keeps them until mesh_wait returns 1 or mesh_drop returns.
// Threads     Any; the calls of one lane one at a time.
// Blocking    mesh_open and mesh_leave up to their deadlines; mesh_close for half a second; mesh_wait up to limit_ms;
//             mesh_drop for half a second.
#ifndef STARRING_SHARED_FABRIC_MESH_H
#define STARRING_SHARED_FABRIC_MESH_H

#include "shared/fabric/job_key.h"
#include "shared/fabric/lanes.h"

#define MESH_WORD_MAX 512  // bytes

struct mesh;
struct mesh_options {
    int rank, size, lanes;
    const char *listen;         // "tcp://10.0.0.1:*", at which the other ranks reach this process
    const struct job_key *key;  // NULL: none; outlives the mesh
    double deadline_s;          // the time in which all peers must connect; 0: no limit
    // An allgather that all ranks call once, from mesh_open: `bytes` bytes of each rank into all (size x bytes), in
    // rank order. Returns 0, or -1 after logging.
    int (*meet)(void *ctx, const void *mine, size_t bytes, void *all);
    void *meet_ctx;
    // Receives a word, on the thread that moves messages, with the mesh locked.
    void (*word)(void *ctx, int from, const void *bytes, size_t n);
    void *ctx;
};

// Returns 0, or -1 after logging.
int mesh_open(struct mesh **out, const struct mesh_options *o);
// Says goodbye: waits until the other ranks have received all messages, or have gone.
void mesh_leave(struct mesh *m);
void mesh_close(struct mesh **m);

// One message each way with a peer; bytes 0: none.
void mesh_send(struct mesh *m, int lane, int to, uint32_t tag, const void *at, size_t bytes);
void mesh_receive(struct mesh *m, int lane, int from, uint32_t tag, void *at, size_t bytes);
void mesh_turn(struct mesh *m);  // Moves all messages that can be moved now.
void mesh_look(struct mesh *m);  // Does the same, and checks which peers have ended.
// Returns 1 if all messages of the lane are done; 0: not yet; -1: the lane has failed, why receives the reason.
int mesh_wait(struct mesh *m, int lane, int limit_ms, char why[LANES_WHY]);
bool mesh_missing(struct mesh *m, int lane, bool *missing);  // lanes_missing
uint64_t mesh_moved(struct mesh *m, int lane);               // lanes_moved
// Drops the lane's messages. If some of their pieces cannot leave, all connections are closed.
void mesh_drop(struct mesh *m, int lane);

// Returns whether the word was queued.
bool mesh_say(struct mesh *m, int to, const void *word, size_t bytes);
// Returns the first missing rank whose connection ended so long ago that none of its messages is in flight, or -1. why
// receives the reason.
int mesh_gone(struct mesh *m, const bool *missing, char why[LANES_WHY]);

#endif
