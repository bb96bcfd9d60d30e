// Inside of collective_nccl: what moves where. Pure functions of a call, so that they are tested without a GPU.
#ifndef STARRING_DECENTRAL_NCCL_IMPL_H
#define STARRING_DECENTRAL_NCCL_IMPL_H

#include "decentral/collective_impl.h"

// Elements [begin, end) of everyone's send buffer that rank i adds up.
struct nccl_piece {
    size_t begin, end;
};
struct nccl_piece nccl_piece_of(const struct collective_call *c, int size, int i);
// Elements of [done, done + slot) that lie in a piece.
size_t nccl_chunk(struct nccl_piece p, size_t done, size_t slot);
// Elements of one rank's place in staging, and how many chunks a reduction takes; slot 0: staging is too small.
size_t nccl_slot(size_t staging_bytes, int size, enum dtype dt);
size_t nccl_chunks(const struct collective_call *c, int size, size_t slot);
// Payload of a call, in bytes.
void nccl_volume(const struct collective_call *c, int rank, int size, size_t *sent, size_t *received);

#endif
