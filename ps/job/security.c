#include "ps/job/security.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>

enum ps_security ps_security_of(const struct config *c) {
    return c->security.insecure ? PS_INSECURE : !c->ps.bind || ps_is_local(c->ps.bind) ? PS_LOOPBACK : PS_JOB;
}

const char *ps_security_name(const struct config *c) {
    static const char *const names[] = {"loopback", "job", "insecure"};
    return names[ps_security_of(c)];
}

const char *ps_security_words(const struct config *c) {
    static const char *const words[] = {
        "loopback: processes of this host that have the job's key",
        "job: processes that have the job's key, and everything is encrypted",
        "insecure: ANYBODY WHO REACHES THE PORTS CAN JOIN, READ AND CHANGE THE RUN (--insecure; safer: a key)"};
    return words[ps_security_of(c)];
}

bool ps_is_local(const char *address) {
    char host[64];
    struct in_addr v4;
    struct in6_addr v6;
    if (!strncmp(address, "ipc://", 6) || !strncmp(address, "inproc://", 9)) return true;
    // The host of "tcp://HOST:PORT" or "HOST", without the brackets of IPv6.
    const char *at = strncmp(address, "tcp://", 6) ? address : address + 6;
    const char *colon = strrchr(at, ':'), *bracket = strchr(at, ']');
    size_t n = at != address && colon ? (size_t)(colon - at) : strlen(at);
    if (*at == '[' && bracket) n = (size_t)(bracket - ++at);
    snprintf(host, sizeof host, "%.*s", n < sizeof host ? (int)n : (int)sizeof host - 1, at);
    if (!strcmp(host, "localhost")) return true;
    if (inet_pton(AF_INET, host, &v4) == 1) return ntohl(v4.s_addr) >> 24 == 127;
    return inet_pton(AF_INET6, host, &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}
