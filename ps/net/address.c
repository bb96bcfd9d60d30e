#include "ps/net/address.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/core/error.h"

void address_bind(const char *base, int thread, char out[NET_ADDRESS_MAX]) {
    const char *colon = strrchr(base, ':');
    long port = colon ? strtol(colon + 1, NULL, 10) : 0;
    if (port > 0 && port <= 65535)  // another one is refused as it stands: address_check_port
        snprintf(out, NET_ADDRESS_MAX, "%.*s:%ld", (int)(colon - base), base, port + thread);
    else
        snprintf(out, NET_ADDRESS_MAX, "%s", base);
}

int address_check_port(const char *address) {
    const char *port = strrchr(address, ':');
    char *end;
    if (strncmp(address, "tcp://", 6) != 0 || !port || port[1] < '0' || port[1] > '9') return 0;
    long number = strtol(port + 1, &end, 10);
    return number > 65535 || *end ? fail("%s: a port is a number from 1 to 65535", address) : 0;
}

int address_advertised(const char *advertise, const char *bound, int thread, char out[NET_ADDRESS_MAX]) {
    if (!advertise) {
        if (strstr(bound, "//0.0.0.0:") || strstr(bound, "//[::]:"))
            return fail("listening on %s: give --advertise HOST, the name other machines know this one by",
                        bound);
        snprintf(out, NET_ADDRESS_MAX, "%s", bound);
    } else if (strncmp(advertise, "tcp://", 6) == 0) {
        address_bind(advertise, thread, out);
    } else {
        snprintf(out, NET_ADDRESS_MAX, "tcp://%s%s", advertise, strrchr(bound, ':'));
    }
    return 0;
}
