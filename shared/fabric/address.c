#include "shared/fabric/address.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "shared/core/error.h"

// An IPv4 address in IPv6 form (::ffff:a.b.c.d) is written as IPv4.
static int to_text(const struct sockaddr *a, char out[ADDRESS_MAX]) {
    const struct in6_addr *six = &((const struct sockaddr_in6 *)a)->sin6_addr;
    if (a->sa_family == AF_INET)
        return inet_ntop(AF_INET, &((const struct sockaddr_in *)a)->sin_addr, out, ADDRESS_MAX) ? 0 : -1;
    bool mapped = IN6_IS_ADDR_V4MAPPED(six);
    return inet_ntop(mapped ? AF_INET : AF_INET6, six->s6_addr + 12 * mapped, out, ADDRESS_MAX) ? 0 : -1;
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

// out receives the local address of the route to `to`. Returns 0, or an errno.
static int of_route(const char *to, char out[ADDRESS_MAX]) {
    struct addrinfo *found = NULL, how = {.ai_socktype = SOCK_DGRAM, .ai_flags = AI_NUMERICHOST};
    struct sockaddr_storage own = {0};
    socklen_t size = sizeof own;
    if (getaddrinfo(to, "9", &how, &found)) return EINVAL;
    int fd = socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    // Connecting a UDP socket sends nothing.
    bool good = fd >= 0 && connect(fd, found->ai_addr, found->ai_addrlen) == 0 &&
                getsockname(fd, (struct sockaddr *)&own, &size) == 0;
    int error = errno;
    if (fd >= 0) close(fd);
    freeaddrinfo(found);
    return good && !to_text((struct sockaddr *)&own, out) ? 0 : error ? error : EINVAL;
}

// Returns whether a list in NCCL's syntax matches the interface's name or its address: "eth,ib" are prefixes, "=eth0"
// is a whole name, "^docker,lo" excludes.
static bool takes(const char *list, const char *name, const char *address) {
    bool others = *list == '^', named = false;
    list += others;
    bool whole = *list == '=';
    list += whole;
    for (size_t n; *list && !named; list += n + (list[n] == ',')) {
        n = strcspn(list, ",");
        named = n && ((!strncmp(list, name, n) && (!whole || !name[n])) ||
                      (!strncmp(list, address, n) && !address[n]));
    }
    return named != others;
}

int address_own(const char *interface, const char *to, char out[ADDRESS_MAX]) {
    struct ifaddrs *all = NULL;
    char names[256] = "", text[ADDRESS_MAX], route[ADDRESS_MAX];
    int error = of_route(to, route);
    if (!interface && error) return fail("no way to %s: %s", to, strerror(error));
    if (!interface) return strcpy(out, route), 0;
    if (error) *route = 0;
    if (getifaddrs(&all)) return fail("the interfaces of this machine: %s", strerror(errno));
    int best = 0;
    for (const struct ifaddrs *i = all; i; i = i->ifa_next) {
        bool known = i->ifa_addr && (i->ifa_addr->sa_family == AF_INET || i->ifa_addr->sa_family == AF_INET6);
        if (!known || to_text(i->ifa_addr, text)) continue;
        size_t at = strlen(names);
        snprintf(names + at, sizeof names - at, "%s%s (%s)", at ? ", " : "", i->ifa_name, text);
        // Priority: an exact name, then the address of the route, then IPv4, then the first address. An exclusion list
        // (^) also excludes loopback, which reaches no other host.
        bool exact = !strcmp(i->ifa_name, interface) || !strcmp(text, interface);
        bool loops = *interface == '^' && i->ifa_flags & IFF_LOOPBACK;
        int rank = 1 + 2 * !strcmp(text, route) + 4 * exact + (i->ifa_addr->sa_family == AF_INET);
        if (loops || !takes(interface, i->ifa_name, text) || rank <= best) continue;
        best = rank;
        strcpy(out, text);
    }
    freeifaddrs(all);
    return best ? 0 : fail("this machine has no interface %s; it has %s", interface, names);
}

bool address_is_number(const char *host) {
    struct in6_addr any;
    return inet_pton(AF_INET, host, &any) == 1 || inet_pton(AF_INET6, host, &any) == 1;
}

bool address_is_loopback(const char *host) {
    struct in_addr v4;
    struct in6_addr v6;
    if (!strcmp(host, "localhost")) return true;
    if (inet_pton(AF_INET, host, &v4) == 1) return ntohl(v4.s_addr) >> 24 == 127;
    return inet_pton(AF_INET6, host, &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

int endpoint_read(const char *name, const char *text, struct endpoint *out) {
    const char *host = text + 6, *port = strncmp(text, "tcp://", 6) ? NULL : strrchr(host, ':');
    size_t n = port ? (size_t)(port - host) : 0;
    char *end = "";
    long number = 0;
    // ZeroMQ accepts any number as a port, and listens on its lower 16 bits.
    if (port && strcmp(++port, "*") != 0) number = *port >= '0' && *port <= '9' ? strtol(port, &end, 10) : -1;
    if (!n || n >= sizeof out->host || *end || number < 0 || number > 65535)
        return name
                   ? fail(
                         "%s %s: an address reads tcp://HOST:PORT; a port is a number from 1 to 65535, or * for any that is free",
                         name, text)
                   : -1;
    if (*host == '[' && host[n - 1] == ']') host++, n -= 2;
    snprintf(out->host, sizeof out->host, "%.*s", (int)n, host);
    if (!strcmp(out->host, "*")) snprintf(out->host, sizeof out->host, "0.0.0.0");
    out->port = (int)number;
    return 0;
}

void endpoint_text(const char *host, int port, char *out, unsigned long size) {
    char number[16] = "*";
    if (port) snprintf(number, sizeof number, "%d", port);
    snprintf(out, size, strchr(host, ':') ? "tcp://[%s]:%s" : "tcp://%s:%s", host, number);
}
