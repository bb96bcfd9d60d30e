// A message that has arrived, and where from.
#ifndef STARRING_PS_NET_NET_MESSAGE_H
#define STARRING_PS_NET_NET_MESSAGE_H

#include "ps/net/port.h"

#define NET_ROUTE_MAX 255

// The sender of a ROUTER's message.
struct net_route {
    uint8_t id[NET_ROUTE_MAX];
    size_t bytes;  // 0: unknown
};

struct net_message {
    struct net_route from;  // ROUTER
    struct wire_header header;
    struct ps_frame *frame;  // owned by the receiver; NULL: no payload
};

#endif
