// The addresses that a server's shard threads bind and tell others.
#ifndef STARRING_PS_NET_ADDRESS_H
#define STARRING_PS_NET_ADDRESS_H

#define NET_ADDRESS_MAX 256  // bytes, with the closing zero

// The address shard `thread` binds: "tcp://host:*" as it is, "tcp://host:port" counts upwards from port.
void address_bind(const char *base, int thread, char out[NET_ADDRESS_MAX]);
// ZeroMQ takes any number for a port, and listens on what is left of it in 16 bits. 0, or -1 after logging.
int address_check_port(const char *address);
// The address for others: as bound, or at the advertised host, or at the advertised tcp://host:port + thread. 0, or -1
// after logging.
int address_advertised(const char *advertise, const char *bound, int thread, char out[NET_ADDRESS_MAX]);

#endif
