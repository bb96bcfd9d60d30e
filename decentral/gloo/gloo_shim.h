// As much of Gloo as the engine uses, in C: connections to all other ranks, and messages on them. gloo_shim.cc is the one file
// that sees Gloo's headers; it has no rules of its own.
//
// Errors    -1 or NULL, and a sentence in why (GLOO_WHY bytes), without the rank.
// Waits     Gloo closes all connections of a mesh when a wait for a message of it runs out of time. The messages here belong to
//           a mesh without connections, so that they may be asked for as often as one likes.
#ifndef STARRING_DECENTRAL_GLOO_GLOO_SHIM_H
#define STARRING_DECENTRAL_GLOO_GLOO_SHIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define GLOO_WHY           256
#define GLOO_ADDRESS_BYTES 192

// A process's end of all connections: an address of this host, and a thread of Gloo's that moves bytes.
struct gloo_net;
struct gloo_net *gloo_net_open(const char *address, char *why);
void gloo_net_close(struct gloo_net **n);  // after its meshes

// Connections with every other rank. Each listens on a port of its own until its peer has come.
struct gloo_mesh;
// addresses: (size, GLOO_ADDRESS_BYTES) out: of the connection for each rank. limit_s: of the connecting; 0: none.
struct gloo_mesh *gloo_mesh_open(struct gloo_net *n, int rank, int size, double limit_s, char *addresses,
                                 char *why);
// In rank order, with what the peer has for this rank. Waits for it.
int gloo_mesh_connect(struct gloo_mesh *m, int peer, const char *address, char *why);
void gloo_mesh_close(struct gloo_mesh **m);  // after its messages

// Memory that is sent or received into, once.
struct gloo_message;
struct gloo_message *gloo_message_new(struct gloo_mesh *m, void *at, size_t bytes);
// Neither blocks. A message goes where one of the same slot is received, in order. One that is longer than what receives it
// would end the receiver's process.
int gloo_message_send(struct gloo_message *m, int to, uint64_t slot, char *why);
int gloo_message_receive(struct gloo_message *m, int from, uint64_t slot, char *why);
// Waits for so long. 1: done; 0: not yet; -1: its connection is closed. Of a message that was under way when the connection
// closed it stays 0.
int gloo_message_wait(struct gloo_message *m, int limit_ms, char *why);
void gloo_message_free(struct gloo_message **m);  // done or not

#ifdef __cplusplus
}
#endif

#endif
