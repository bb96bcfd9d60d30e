// The connections between all processes of a group: one for each pair, over which all that the two say to each other goes.
// Messages go on lanes (shared/fabric/lanes.h); beside them short words, which are as good as lost where the peer is.
//
//     rank r   listens; connects to all ranks below r; has heard from all above it
//     mesh_send, mesh_receive, mesh_turn     a message each way with each peer of a lane is under way
//     mesh_wait                              until they are done
//
// Trust       With the job's key all is encrypted, and who has it is one of the ranks. Without, a rank shows the token that the
//             other one has told where they meet, in clear: the meeting says who they are.
// Moving      Whoever waits moves what has come, for all lanes; where nobody does, mesh_look does, now and then.
// Ownership   Buffers of messages under way are the caller's, until mesh_wait has said 1 or mesh_drop returns.
// Threads     Any, and a lane's calls one at a time.
// Blocking    mesh_open and mesh_close up to their deadlines; mesh_wait up to limit_ms; mesh_drop for half a second.
#ifndef STARRING_SHARED_FABRIC_MESH_H
#define STARRING_SHARED_FABRIC_MESH_H

#include "shared/fabric/job_key.h"
#include "shared/fabric/lanes.h"

#define MESH_WORD_MAX 512  // bytes

struct mesh;
struct mesh_options {
    int rank, size, lanes;
    const char *listen;         // "tcp://10.0.0.1:*", at which the others reach this process
    const struct job_key *key;  // NULL: there is none; outlives the mesh
    double deadline_s;          // for all to come; 0: none
    // All ranks call it once, from mesh_open: everybody's bytes (as many of each) into all (size x bytes), in rank order. 0, or
    // -1 after logging.
    int (*meet)(void *ctx, const void *mine, size_t bytes, void *all);
    void *meet_ctx;
    // A word has come: on the thread of whoever moves, with the mesh locked.
    void (*word)(void *ctx, int from, const void *bytes, size_t n);
    void *ctx;
};

// 0, or -1 after logging.
int mesh_open(struct mesh **out, const struct mesh_options *o);
// The goodbye: what was said last is given until the others have it, or have gone.
void mesh_leave(struct mesh *m);
void mesh_close(struct mesh **m);

// One message each way with a peer; bytes 0: none.
void mesh_send(struct mesh *m, int lane, int to, uint32_t tag, const void *at, size_t bytes);
void mesh_receive(struct mesh *m, int lane, int from, uint32_t tag, void *at, size_t bytes);
void mesh_turn(struct mesh *m);  // moves what can be moved now
void mesh_look(struct mesh *m);  // the same, and looks at who has gone
// 1: all messages of the lane are done; 0: not yet; -1: the lane has failed, as why says.
int mesh_wait(struct mesh *m, int lane, int limit_ms, char why[LANES_WHY]);
bool mesh_missing(struct mesh *m, int lane, bool *missing);  // lanes_missing
uint64_t mesh_moved(struct mesh *m, int lane);               // lanes_moved
// Gives the lane's messages up. Where pieces of them do not leave, all connections end.
void mesh_drop(struct mesh *m, int lane);

// Returns whether it was queued.
bool mesh_say(struct mesh *m, int to, const void *word, size_t bytes);
// The first of the ranks that are missing whose connection has ended so long ago that nothing of it is under way any more, and why;
// or -1.
int mesh_gone(struct mesh *m, const bool *missing, char why[LANES_WHY]);

#endif
