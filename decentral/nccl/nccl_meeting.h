// NCCL's rendezvous over other collectives.
#ifndef STARRING_DECENTRAL_NCCL_NCCL_MEETING_H
#define STARRING_DECENTRAL_NCCL_NCCL_MEETING_H

#include "decentral/nccl/nccl_world.h"

// A rendezvous over collectives that are there already (threads' or MPI's), on a CPU stream of its own. abort
// reaches the others as far as that implementation's does.
struct nccl_meeting;
int nccl_meeting_open(struct nccl_meeting **out, const struct collective_source *under, double deadline_s);
void nccl_meeting_close(struct nccl_meeting **m);  // after the world that uses it
struct nccl_rendezvous nccl_meeting_rendezvous(struct nccl_meeting *m);

#endif
