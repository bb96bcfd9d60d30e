#include "shared/launch/launch_check.h"

#include "shared/core/error.h"
#include "shared/core/topology_row.h"

int launch_check(const struct config *c) {
    const struct topology_row *row = c->row;
    if (!(row->launches >> c->launch & 1))
        return fail("--launch %s: %s", launch_rows[c->launch].name, row->launch_advice);
    if (!row->collectives && c->reduce_native)
        return fail(
            "--topology %s: \"reduce\": \"native\" is the ring's; the star's "
            "servers and a single process always sum in worker order",
            c->topology);
    if (!row->takes_groups && c->reduce_group)
        return fail("--topology %s: its sums have no groups: leave reduce_group out", c->topology);
    if (c->reduce_group > 0 && c->workers % c->reduce_group)
        return fail("reduce_group %lld: --workers %d are not groups of %lld; give a number that divides them",
                    (long long)c->reduce_group, c->workers, (long long)c->reduce_group);
    if (!row->takes_delay && c->local_delay)
        return fail(
            "--topology %s: local.delay %d is of --topology local; a star delays weights with ps:ssp:%d: leave local.delay out",
            c->topology, c->local_delay, c->local_delay);
    return row->check ? row->check(c) : 0;
}

int launch_check_rank(const struct config *c, const struct rank_env *e) {
    return c->row->check_rank ? c->row->check_rank(c, e) : 0;
}
