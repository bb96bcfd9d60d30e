// A shard thread's sockets to both of its neighbours: a DEALER of its own to the shard that keeps its replica, and the
// route, on its ROUTER, to the one whose replica it keeps.
//
// Threads     neighbours_open: the server's main thread, before the shard's. The rest: the shard's.
// Without replication everything is empty, and nothing is sent, received or decided.
#ifndef STARRING_PS_SERVER_NEIGHBOURS_H
#define STARRING_PS_SERVER_NEIGHBOURS_H

#include "ps/agree/key_rows.h"
#include "ps/net/net.h"
#include "ps/net/roster.h"
#include "ps/server/replica.h"

struct neighbours {
    struct net_socket *to_holder;  // NULL: no replication
    struct net_route to_primary;
    struct replica *replica;
    int primary_shard, holder_shard, threads;
    struct roster_shard holder;  // once it has been met
    bool loaded;
};

struct neighbours_options {
    struct net *net;
    const struct config *config;
    const struct layout *layout;
    const struct shard_map *map;
    const struct server_buffers *buffers;  // (map->count)
    int shard;                             // the thread's own
    struct ps_port port;                   // sends to PEER_PRIMARY
};
// 0, or -1 after logging.
int neighbours_open(struct neighbours *l, const struct neighbours_options *o);
void neighbours_close(struct neighbours *l);
// The job has started: connects to the holder. 0, or -1 after logging.
int neighbours_meet(struct neighbours *l, const struct roster *r);
// Whether a message that came on to_holder is of the holder, and the process that the roster has.
bool neighbours_is_holder(const struct neighbours *l, const struct wire_header *h);
// Whether the message was for a neighbour, and has been sent. router: the shard's.
bool neighbours_sent(struct neighbours *l, struct net_socket *router, int peer, const struct ps_message *m);
// Whether a message that came on the ROUTER is of the primary: answers go back there.
bool neighbours_is_primary(struct neighbours *l, const struct net_message *m);
// The checkpoint that the job goes on from has been read, of the primary's keys too: how far all keys of the job are.
void neighbours_loaded(struct neighbours *l, const struct shard_map *m, const struct key_rows *rows);
// A DECISION of the scheduler; the job's number. 0, or -1 with neighbours_error.
int neighbours_decided(struct neighbours *l, const struct wire_header *h);
void neighbours_set_job(struct neighbours *l, uint64_t job);
const char *neighbours_error(const struct neighbours *l);  // "": none

#endif
