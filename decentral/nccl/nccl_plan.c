// Pieces, chunks and volumes of collectives; see nccl_impl.h.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "decentral/nccl/nccl_impl.h"
#include "shared/core/error.h"

#define MULTI_RANK_GPU 23000               // NCCL 2.30 knows NCCL_MULTI_RANK_GPU_ENABLE
#define CHUNK_BYTES    ((size_t)32 << 20)  // large enough for full bandwidth: a latency is some 20 us

size_t collective_nccl_staging_bytes(int size, size_t max_count, enum dtype dt) {
    size_t bytes = dev_round(max_count * dtype_size(dt));
    return (size_t)(size - 1) * (bytes < CHUNK_BYTES ? bytes : CHUNK_BYTES);
}

struct nccl_piece nccl_piece_of(const struct collective_call *c, int size, int i) {
    size_t at = (size_t)i;
    switch (c->op) {
        case COLLECTIVE_REDUCE:
            return (struct nccl_piece){0, i == c->root ? c->count : 0};
        case COLLECTIVE_REDUCE_SCATTER:
            return (struct nccl_piece){at * c->count, (at + 1) * c->count};
        default:
            return (struct nccl_piece){collective_piece_begin(c->count, size, i),
                                       collective_piece_begin(c->count, size, i + 1)};
    }
}

size_t nccl_chunk(struct nccl_piece p, size_t done, size_t slot) {
    size_t n = p.end - p.begin;
    if (n <= done) return 0;
    return n - done < slot ? n - done : slot;
}

size_t nccl_slot(size_t staging_bytes, int size, enum dtype dt) {
    if (size < 2) return SIZE_MAX;
    return staging_bytes / (size_t)(size - 1) / DEV_ALIGN * DEV_ALIGN / dtype_size(dt);
}

size_t nccl_chunks(const struct collective_call *c, int size, size_t slot) {
    size_t longest = 0;
    for (int i = 0; i < size; i++) {
        struct nccl_piece p = nccl_piece_of(c, size, i);
        if (p.end - p.begin > longest) longest = p.end - p.begin;
    }
    return longest == 0 ? 0 : (longest - 1) / slot + 1;
}

// A reduction: everyone's copy of a piece goes to its rank. All-reduce: the sums come back.
static void reduction_volume(const struct collective_call *c, int rank, int size, size_t *sent,
                             size_t *received) {
    size_t e = dtype_size(c->dt), others = 0, peers = (size_t)(size - 1);
    struct nccl_piece mine = nccl_piece_of(c, size, rank);
    for (int i = 0; i < size; i++) {
        struct nccl_piece p = nccl_piece_of(c, size, i);
        if (i != rank) others += (p.end - p.begin) * e;
    }
    size_t own = (mine.end - mine.begin) * e * peers;
    bool back = c->op == COLLECTIVE_ALL_REDUCE;
    *sent = others + (back ? own : 0);
    *received = own + (back ? others : 0);
}

void nccl_volume(const struct collective_call *c, int rank, int size, size_t *sent, size_t *received) {
    size_t bytes = c->count * dtype_size(c->dt), peers = (size_t)(size - 1);
    bool root = rank == c->root;
    *sent = *received = 0;
    switch (c->op) {
        case COLLECTIVE_REDUCE:
        case COLLECTIVE_ALL_REDUCE:
        case COLLECTIVE_REDUCE_SCATTER:
            reduction_volume(c, rank, size, sent, received);
            break;
        case COLLECTIVE_BROADCAST:
        case COLLECTIVE_SCATTER:
            *(root ? sent : received) = root ? peers * bytes : bytes;
            break;
        case COLLECTIVE_GATHER:
            *(root ? received : sent) = root ? peers * bytes : bytes;
            break;
        case COLLECTIVE_ALL_GATHER:
        case COLLECTIVE_ALL_TO_ALL:
            *sent = *received = peers * bytes;
            break;
        case COLLECTIVE_SEND:
            *sent = bytes;
            break;
        case COLLECTIVE_RECV:
            *received = bytes;
            break;
        case COLLECTIVE_BARRIER:
        case COLLECTIVE_OPS:
            break;
    }
}

void nccl_native_volume(const struct collective_call *c, int rank, int size, size_t *sent, size_t *received) {
    nccl_volume(c, rank, size, sent, received);
    if (c->op == COLLECTIVE_ALL_REDUCE)
        *sent = *received = 2 * (size_t)(size - 1) * c->count * dtype_size(c->dt) / (size_t)size;
}

// ---------------------------------------------------------------- who computes where

struct place {
    char host[64], bus_id[32];
};

static int sharing(const struct nccl_world *w, int a, int b, const struct place *p, int nccl_version) {
    const char *asked = getenv("NCCL_MULTI_RANK_GPU_ENABLE");
    if (nccl_version >= MULTI_RANK_GPU && asked && strcmp(asked, "1") == 0) return 0;
    if (w->o.rank != 0) return -1;  // said once
    return fail(
        "ranks %d and %d share one GPU (%s of %s), which NCCL %d.%d %s; give each rank its own, or use "
        "--collective local (ranks as threads) or mpi (as processes)",
        a, b, p->bus_id, p->host, nccl_version / 10000, nccl_version / 100 % 100,
        nccl_version >= MULTI_RANK_GPU ? "allows only with NCCL_MULTI_RANK_GPU_ENABLE=1" : "does not allow");
}

int nccl_check_devices(const struct nccl_world *w, int nccl_version) {
    struct place places[REDUCE_MAX];
    struct device_facts facts;
    memset(places, 0, sizeof places);
    if (dev_facts(w->o.device, &facts) != 0) return fail("NCCL: %s", dev_error(w->o.device));
    struct place *mine = &places[w->o.rank];
    gethostname(mine->host, sizeof mine->host - 1);
    snprintf(mine->bus_id, sizeof mine->bus_id, "%s", facts.bus_id);
    for (int i = 0; i < w->o.size; i++)
        if (w->o.rendezvous.share(w->o.rendezvous.ctx, i, &places[i], sizeof places[i]) != 0) return -1;
    for (int i = 0; i < w->o.size; i++)
        for (int k = i + 1; k < w->o.size; k++)
            if (memcmp(&places[i], &places[k], sizeof places[i]) == 0 &&
                sharing(w, i, k, &places[i], nccl_version) != 0)
                return -1;
    return 0;
}
