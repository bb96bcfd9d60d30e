// NCCL's rendezvous: how the ranks tell each other what NCCL needs to begin with, over collectives that are there
// already (threads' or MPI's), on a CPU stream of its own.
#ifndef STARRING_DECENTRAL_NCCL_NCCL_MEETING_H
#define STARRING_DECENTRAL_NCCL_NCCL_MEETING_H

#include "decentral/collective/collective.h"

struct nccl_meeting;
int nccl_meeting_open(struct nccl_meeting **out, const struct collective_source *under, double deadline_s);
void nccl_meeting_close(struct nccl_meeting **m);  // after the world that uses it
// All ranks call it in the same order. After it, bytes hold what root's held. 0, or -1 after saying why. Blocks,
// up to the deadline.
int nccl_meeting_share(struct nccl_meeting *m, int root, void *bytes, size_t size);
// As far as those collectives can.
void nccl_meeting_abort(struct nccl_meeting *m, const char *why);
const char *nccl_meeting_aborted(struct nccl_meeting *m);  // never blocks

#endif
