#include "shared/fabric/descriptors.h"

#include <errno.h>
#include <string.h>
#include <sys/resource.h>

#include "shared/core/error.h"

#define HELD_BY_STRANGERS_MAX ((size_t)128 << 20)  // bytes, if frames are large
#define SPARE_LEAST           64

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
