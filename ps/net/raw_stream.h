// A stream of messages over bare ZeroMQ, the ceiling of what the star's tcp can reach: the same sockets (DEALER to
// ROUTER), the same two parts, payloads sent from where they lie, and no protocol. For `starring bench ps` alone.
//
// Threads   A stream belongs to one thread.
// Blocking  send and receive, up to RAW_STREAM_S without a message.
// Errors    -1 after logging.
#ifndef STARRING_PS_NET_RAW_STREAM_H
#define STARRING_PS_NET_RAW_STREAM_H

#include <stddef.h>
#include <stdint.h>

#include "ps/net/net.h"

#define RAW_STREAM_S 20

struct raw_stream;

// The receiver's end (its process's malloc keeps what is freed from now on), on a port of this host that it writes to address; the sender's end. NULL after logging.
struct raw_stream *raw_stream_listen(char address[NET_ADDRESS_MAX]);
struct raw_stream *raw_stream_connect(const char *address);
void raw_stream_close(struct raw_stream **s);

// Sends `count` messages, payload i from base + i * bytes, and waits for the receiver's word that it has read
// the last one: then nothing reads from base any more.
int raw_stream_send(struct raw_stream *s, const char *base, size_t bytes, int count);
// Takes `count` messages of `bytes`, reads every byte of each once and tells the sender. *checksum: the
// exclusive or of all 64-bit words; bytes is a multiple of 8.
int raw_stream_receive(struct raw_stream *s, size_t bytes, int count, uint64_t *checksum);
// The sum that receive makes of bytes at p.
uint64_t raw_stream_checksum(const void *p, size_t bytes);

#endif
