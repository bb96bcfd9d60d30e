#include "ps/net/descriptors.h"

#include <errno.h>
#include <string.h>
#include <sys/resource.h>

#include "ps/net/medium.h"
#include "shared/core/error.h"

// The descriptors of a role beside its members' connections: standard streams, ZeroMQ's contexts (a server's and a worker's
// pulses have one of their own), files and memory that it shares. Seen: 13, 21 and 24.
#define OF_SCHEDULER 20
#define OF_SERVER    36
#define OF_WORKER    36

#define OF_IO_THREAD 2

#define HELD_BY_STRANGERS_MAX ((size_t)128 << 20)  // bytes, where frames are large
#define SPARE_LEAST           64

int descriptors_of_scheduler(const struct config *c, int threads) {
    return OF_SCHEDULER + 2 * c->workers + c->ps.servers * (2 + threads);
}

// A shard thread has a ROUTER and two DEALERs, and two sockets that watch its login; its workers and a neighbour connect.
int descriptors_of_server(const struct config *c, int threads) {
    return OF_SERVER + OF_IO_THREAD * ps_io_threads(c, threads) + threads * (9 + c->workers);
}

int descriptors_of_worker(const struct config *c, int shards) {
    return OF_WORKER + OF_IO_THREAD * ps_io_threads(c, shards) + 2 * shards + 2 * ps_crew(c);
}

int descriptors_claim(int needed, int spare) {
    struct rlimit l;
    if (getrlimit(RLIMIT_NOFILE, &l) != 0)
        return fail("no limit of open files is known: %s", strerror(errno));
    rlim_t wanted = (rlim_t)needed + (rlim_t)spare;
    l.rlim_cur = !spare || wanted > l.rlim_max ? l.rlim_max : wanted;
    if (setrlimit(RLIMIT_NOFILE, &l) != 0) getrlimit(RLIMIT_NOFILE, &l);
    if (l.rlim_cur >= (rlim_t)needed) return 0;
    return fail(
        "this process may have %llu files and connections open, and takes about %d for this job: raise the "
        "limit (ulimit -n %d)",
        (unsigned long long)l.rlim_cur, needed, needed);
}

int descriptors_spare(size_t heard_bytes) {
    size_t spare = HELD_BY_STRANGERS_MAX / (heard_bytes + 1);
    return spare > DESCRIPTORS_SPARE ? DESCRIPTORS_SPARE : spare < SPARE_LEAST ? SPARE_LEAST : (int)spare;
}
