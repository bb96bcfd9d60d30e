#include "shared/fabric/address.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <stdio.h>
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

void address_endpoint(const char *address, int port, char *out, unsigned long size) {
    snprintf(out, size, strchr(address, ':') ? "tcp://[%s]:%d" : "tcp://%s:%d", address, port);
}

bool address_is_loopback(const char *address) {
    return !strncmp(address, "127.", 4) || !strcmp(address, "::1");
}
