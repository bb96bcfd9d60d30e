#include "ps/net/medium.h"

#include <unistd.h>

#include "ps/job/consistency.h"
#include "ps/job/security.h"
#include "shared/core/system.h"

#define KEYS_MAX 32768  // each is a separate mapping; Linux allows a process 65530

int ps_io_threads(const struct config *c, int streams, int peers) {
    int given = processors_given();
    bool near = ps_security_of(c) == PS_LOOPBACK;  // all peers are on this host
    int most = near || streams > peers ? streams : peers;
    if ((near && ps_shares(c)) || most < 1) return 1;
    return most > given ? given : most;
}

bool ps_weights_in_place(const struct config *c, bool pages, int64_t keys) {
    return ps_shares(c) && !ps_is_staged(c) && !ps_by_units(c) && consistency_freezes(consistency_of(c)) &&
           pages && keys <= KEYS_MAX && sysconf(_SC_PAGESIZE) == SHARD_PAGE;
}
