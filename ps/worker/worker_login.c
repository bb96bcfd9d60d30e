// The login of a worker's communication thread.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ps/medium.h"
#include "ps/net/farewell.h"
#include "ps/net/pulse.h"
#include "ps/timing.h"
#include "ps/trust/descriptors.h"
#include "ps/worker/attach.h"
#include "ps/worker/worker_comm_state.h"
#include "shared/core/error.h"
#include "shared/launch/stop.h"

static int connect_shards(struct comm *c) {
    for (int g = 0; g < c->o.map->shards; g++) {
        const struct roster_shard *s = &c->roster->shard[g];
        const struct net_peer to = {s->address, NET_DATA, g / c->o.map->threads, s->token};
        if (!(c->shards[g] = net_dealer(c->net, &to))) return -1;
    }
    return 0;
}

static int log_in(struct comm *c, const struct manifest *manifest) {
    const struct ps_role_options *role = &c->o.role;
    struct net_options no = {.wire = c->o.wire,
                             .max_payload_bytes = (size_t)c->c->ps.partition_bytes + (1 << 20),
                             .io_threads = ps_io_threads(c->o.sharing->c, c->o.map->shards),
                             .queue_messages = 4 * c->o.map->count + 1024,
                             .faults = fault_plan_of(c->c, PS_WORKER, role->rank),
                             .trust = role->trust};
    const struct net_peer scheduler = {.address = role->scheduler};
    if (descriptors_claim(descriptors_of_worker(c->c, c->o.map->shards), 0) != 0) return -1;
    c->net = net_create(&no);
    if (!c->net || !(c->scheduler = net_dealer(c->net, &scheduler))) return -1;
    struct ps_login l = {
        .socket = c->scheduler, .role = role, .manifest = manifest, .shards = c->o.map->shards};
    if (ps_login(&l, &c->id) != 0) return -1;
    error_set_label("worker %d", c->id.rank);
    c->link = link_create(&(struct link_options){.peers = c->o.map->shards,
                                                 .repeat_most_s = ps_repeat_most_s(c->c),
                                                 .network = {c, comm_send},
                                                 .renew = comm_renew,
                                                 .ctx = c});
    struct pulse_options beats = {.role = role, .id = c->id, .wire = c->o.wire, .turns = &c->turns};
    if (!(c->pulse = pulse_start(&beats))) return -1;
    coming_stop(role->coming);
    c->roster = ps_wait_start(&l, &c->id);
    int rc = c->roster ? connect_shards(c) : -1;
    struct attach a = {.role = role,
                       .id = &c->id,
                       .scheduler = c->scheduler,
                       .shards = c->shards,
                       .sharing = c->o.sharing,
                       .roster = c->roster};
    if (rc == 0) rc = attach_shards(&a);
    if (rc == 0 && c->id.joins) rc = join_running(&l, &c->id, &c->joined);
    // If the launcher asked this worker to leave, it also tells the other roles to end.
    bool asked = ps_stopped(role->stop) && stop_supervised();
    if (rc != 0 && !asked) ps_abort(c->scheduler, c->link, &c->id, error_last());
    return rc;
}

int comm_join_job(struct comm *c) {
    struct manifest manifest = manifest_make(&c->o.role, c->o.map);
    int rc = log_in(c, &manifest);
    manifest_release(&manifest);
    return rc;
}
