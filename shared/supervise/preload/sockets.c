// Loaded into mpirun and its ranks before all other libraries, where they cannot have a network of their own: Open MPI's
// sockets would listen on all addresses, which no setting changes, and talk to whoever connects. Here they listen on the
// loopback, and take connections of this user's processes alone.
//
// Limits      The kernel's table gives a socket that its process has closed to uid 0, so root's jobs take such a connection for
//             their own; and where there is no table, everybody is admitted. It goes with Open MPI, once ranks that are
//             processes of one host exchange by themselves.
#include <errno.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

union address {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
};

// What a socket is called in the kernel's tables; v4 in v6 is in the one of v4.
struct name {
    char text[48];
    bool v6;
};

static int real_bind(int fd, const void *address, socklen_t size) {
    return (int)syscall(SYS_bind, fd, address, size);
}

static int bind_v6(int fd, const union address *a, socklen_t size) {
    union address to = *a;
    to.v6.sin6_addr = (struct in6_addr)IN6ADDR_LOOPBACK_INIT;
    if (real_bind(fd, &to, size) == 0) return 0;
    // Without v6 here its sockets still take connections of v4.
    memset(&to.v6.sin6_addr, 0, sizeof to.v6.sin6_addr);
    memcpy(to.v6.sin6_addr.s6_addr + 10, "\xff\xff\x7f\0\0\1", 6);
    return real_bind(fd, &to, size) == 0 ? 0 : real_bind(fd, a, size);
}

int bind(int fd, const struct sockaddr *address, socklen_t size) {
    union address to = {.any.sa_family = AF_UNSPEC};
    if (address && size <= sizeof to) memcpy(&to, address, size);
    if (to.any.sa_family == AF_INET6 && !memcmp(&to.v6.sin6_addr, &in6addr_any, sizeof in6addr_any))
        return bind_v6(fd, &to, size);
    if (to.any.sa_family != AF_INET || to.v4.sin_addr.s_addr != htonl(INADDR_ANY))
        return real_bind(fd, address, size);
    to.v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return real_bind(fd, &to, size);
}

static void name_of(const union address *a, struct name *out) {
    uint32_t word[4];
    out->v6 = a->any.sa_family == AF_INET6 && !IN6_IS_ADDR_V4MAPPED(&a->v6.sin6_addr);
    unsigned port = ntohs(a->any.sa_family == AF_INET6 ? a->v6.sin6_port : a->v4.sin_port);
    if (a->any.sa_family == AF_INET6)
        memcpy(word, &a->v6.sin6_addr, sizeof word);
    else
        word[3] = a->v4.sin_addr.s_addr;
    if (out->v6)
        snprintf(out->text, sizeof out->text, "%08X%08X%08X%08X:%04X", word[0], word[1], word[2], word[3],
                 port);
    else
        snprintf(out->text, sizeof out->text, "%08X:%04X", word[3], port);
}

// Whether the other end is a socket of this user's, as the kernel's table says. Where there is none, nothing is known.
static bool is_own(int fd) {
    union address there, here;
    struct name peer, self;
    char line[512], from[48], to[48];
    socklen_t size = sizeof there, own = sizeof here;
    unsigned user;
    bool found = false;
    if (getpeername(fd, &there.any, &size) || getsockname(fd, &here.any, &own)) return false;
    if (there.any.sa_family != AF_INET && there.any.sa_family != AF_INET6) return true;
    name_of(&there, &peer);
    name_of(&here, &self);
    FILE *f = fopen(peer.v6 ? "/proc/self/net/tcp6" : "/proc/self/net/tcp", "re");
    while (f && !found && fgets(line, sizeof line, f))
        found = sscanf(line, " %*d: %47s %47s %*s %*s %*s %*s %u", from, to, &user) == 3 &&
                user == geteuid() && !strcmp(from, peer.text) && !strcmp(to, self.text);
    if (f) fclose(f);
    return found || !f;
}

// A stranger's connection is one that went away before it was taken.
int accept4(int fd, struct sockaddr *address, socklen_t *size, int flags) {
    int taken = (int)syscall(SYS_accept4, fd, address, size, flags);
    if (taken < 0 || is_own(taken)) return taken;
    close(taken);
    errno = EAGAIN;
    return -1;
}

int accept(int fd, struct sockaddr *address, socklen_t *size) { return accept4(fd, address, size, 0); }

// What else a rank starts is none of this. A program that a sanitizer watches begins with the sanitizer's own.
__attribute__((constructor)) static void begin(void) {
    const char *before = getenv("STARRING_PRELOAD_BEFORE");
    if (!getenv("OMPI_COMM_WORLD_RANK") && !getenv("STARRING_PRELOAD_MPIRUN_ALONE")) return;
    if (before && *before)
        setenv("LD_PRELOAD", before, 1);
    else
        unsetenv("LD_PRELOAD");
}
