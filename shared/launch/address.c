#include "shared/launch/address.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "shared/core/error.h"

static int to_text(const struct sockaddr *a, char out[ADDRESS_MAX]) {
    const void *at = a->sa_family == AF_INET ? (const void *)&((const struct sockaddr_in *)a)->sin_addr
                                             : (const void *)&((const struct sockaddr_in6 *)a)->sin6_addr;
    return inet_ntop(a->sa_family, at, out, ADDRESS_MAX) ? 0 : -1;
}

int address_resolve(const char *host, char out[ADDRESS_MAX]) {
    struct addrinfo *found = NULL, how = {.ai_socktype = SOCK_STREAM};
    int rc = getaddrinfo(host, NULL, &how, &found);
    if (rc == EAI_AGAIN) return 1;
    if (rc)
        return fail("the host %s has no address: %s", host,
                    rc == EAI_SYSTEM ? strerror(errno) : gai_strerror(rc));
    rc = to_text(found->ai_addr, out);
    freeaddrinfo(found);
    return rc;
}

static int of_route(const char *to, char out[ADDRESS_MAX]) {
    struct addrinfo *found = NULL, how = {.ai_socktype = SOCK_DGRAM, .ai_flags = AI_NUMERICHOST};
    struct sockaddr_storage own = {0};
    socklen_t size = sizeof own;
    if (getaddrinfo(to, "9", &how, &found)) return fail("%s is no numeric address", to);
    int fd = socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    bool good = fd >= 0 && connect(fd, found->ai_addr, found->ai_addrlen) == 0 &&  // sends nothing
                getsockname(fd, (struct sockaddr *)&own, &size) == 0;
    int error = errno;
    if (fd >= 0) close(fd);
    freeaddrinfo(found);
    return good ? to_text((struct sockaddr *)&own, out) : fail("no way to %s: %s", to, strerror(error));
}

int address_own(const char *interface, const char *to, char out[ADDRESS_MAX]) {
    struct ifaddrs *all = NULL;
    char names[256] = "", text[ADDRESS_MAX];
    if (!interface) return of_route(to, out);
    if (getifaddrs(&all)) return fail("the interfaces of this machine: %s", strerror(errno));
    *out = 0;
    for (const struct ifaddrs *i = all; i; i = i->ifa_next) {
        bool known = i->ifa_addr && (i->ifa_addr->sa_family == AF_INET || i->ifa_addr->sa_family == AF_INET6);
        if (!known || to_text(i->ifa_addr, text)) continue;
        size_t at = strlen(names);
        snprintf(names + at, sizeof names - at, "%s%s (%s)", at ? ", " : "", i->ifa_name, text);
        // Of an interface's addresses the first, and one of IPv4 before one of IPv6.
        bool better = !*out || (strchr(out, ':') && i->ifa_addr->sa_family == AF_INET);
        if (!strcmp(text, interface) || (!strcmp(i->ifa_name, interface) && better)) strcpy(out, text);
    }
    freeifaddrs(all);
    return *out ? 0 : fail("this machine has no interface %s; it has %s", interface, names);
}

void address_endpoint(const char *address, int port, char *out, unsigned long size) {
    snprintf(out, size, strchr(address, ':') ? "tcp://[%s]:%d" : "tcp://%s:%d", address, port);
}

bool address_is_loopback(const char *address) {
    return !strncmp(address, "127.", 4) || !strcmp(address, "::1");
}
