// The plan of each primitive, from its line in COLLECTIVE_LIST.
#include "decentral/collective/collective_plan.h"

#define BLOCKS_1 false
#define BLOCKS_N true
#define ROW(primitive, text, sends, sent, receives, received, arrives) \
    [COLLECTIVE_##primitive] = {.name = #text,                         \
                                .senders = HOLDER_##sends,             \
                                .receivers = HOLDER_##receives,        \
                                .n_sent = BLOCKS_##sent,               \
                                .n_received = BLOCKS_##received,       \
                                .result = RESULT_##arrives},
const struct collective_row collective_rows[COLLECTIVE_PRIMITIVES] = {COLLECTIVE_LIST(ROW)};

const char *const reduction_names[REDUCTIONS] = {"sum", "min", "max", "prod", "lor"};

// ---------------------------------------------------------------- which rank has which buffer
static bool holds(const struct collective_plan *p, enum collective_holder who, int rank) {
    switch (who) {
        case HOLDER_NOBODY:
            return false;
        case HOLDER_ALL:
            return true;
        case HOLDER_ROOT:
            return rank == p->call->root;
        case HOLDER_OTHERS:
            return rank != p->call->root;
        case HOLDER_CALLER:
            return rank == p->rank;
        case HOLDER_PEER:
            return rank == p->call->peer;
    }
    return false;
}

bool collective_sends(const struct collective_plan *p, int rank) { return holds(p, p->row->senders, rank); }

struct collective_team collective_team_of(const struct collective_call *c, int size) {
    return c->team.count ? c->team : (struct collective_team){0, 1, size};
}

struct collective_plan collective_plan_of(const struct collective_call *c, int rank, int size) {
    struct collective_team team = collective_team_of(c, size);
    struct collective_plan p = {.call = c,
                                .row = &collective_rows[c->primitive],
                                .rank = collective_member_of(team, rank),
                                .size = team.count,
                                .stride = c->stride ? c->stride : c->count};
    if (holds(&p, p.row->senders, p.rank)) p.send_blocks = p.row->n_sent ? (size_t)p.size : 1;
    if (holds(&p, p.row->receivers, p.rank)) p.recv_blocks = p.row->n_received ? (size_t)p.size : 1;
    return p;
}

// Returns where piece i begins when count elements are split in `size` nearly equal pieces.
static size_t cut(size_t count, size_t size, size_t i) { return count / size * i + count % size * i / size; }

struct collective_span collective_piece(const struct collective_plan *p, int rank) {
    size_t count = p->call->count, size = (size_t)p->size, i = (size_t)rank;
    if (!holds(p, p->row->receivers, rank)) return (struct collective_span){0};
    if (p->row->result == RESULT_SUMMED_IN_PIECES) {
        size_t at = cut(count, size, i);
        return (struct collective_span){at, cut(count, size, i + 1) - at};
    }
    return (struct collective_span){p->row->n_sent ? i * p->stride : 0, count};
}

size_t collective_recv_offset(const struct collective_plan *p, int from) {
    return p->row->n_received ? (size_t)from * p->stride : 0;
}

size_t collective_sum_offset(const struct collective_plan *p) {
    return p->row->result == RESULT_SUMMED_IN_PIECES ? collective_piece(p, p->rank).at : 0;
}

// ---------------------------------------------------------------- steps
size_t collective_slot(size_t staging_bytes, int size, enum dtype dt) {
    if (size < 2) return SIZE_MAX;
    return staging_bytes / (size_t)(size - 1) / DEV_ALIGN * DEV_ALIGN / dtype_size(dt);
}

size_t collective_staging_bytes(int size, size_t max_count, enum dtype dt, size_t chunk_bytes) {
    size_t bytes = dev_round(max_count * dtype_size(dt));
    return (size_t)(size - 1) * (bytes < chunk_bytes ? bytes : chunk_bytes);
}

struct collective_plan collective_plan_steps(const struct collective_call *c, int rank, int size,
                                             const struct collective_staging_room *staging) {
    struct collective_plan p = collective_plan_of(c, rank, size);
    size_t longest = 0, e = dtype_size(c->dt);
    p.steps = 1;
    if (p.row->result == RESULT_MOVED) return p;
    p.staging = staging->at;
    p.slot = collective_slot(staging->bytes, p.size, c->dt);
    p.buffers = 1;
    for (int i = 0; i < p.size; i++) {
        size_t n = collective_piece(&p, i).count;
        if (n > longest) longest = n;
    }
    size_t half = p.slot * e / 2 / DEV_ALIGN * DEV_ALIGN / e;
    bool whole = longest <= p.slot && longest * e <= staging->whole_bytes;
    if (p.size > 1 && !whole && half) {
        p.buffers = 2;
        p.slot = half;
    }
    p.chunks = longest ? (longest - 1) / p.slot + 1 : 0;
    p.steps = p.chunks + (p.row->result == RESULT_SUMMED_IN_PIECES);
    return p;
}

// Returns the elements of a piece in the chunk that begins after `done` elements.
static size_t chunk(struct collective_span piece, size_t done, size_t slot) {
    if (piece.count <= done) return 0;
    return piece.count - done < slot ? piece.count - done : slot;
}

static void *slot_of(const struct collective_plan *p, size_t step, int peer) {
    size_t i = (size_t)(peer < p->rank ? peer : peer - 1) + step % p->buffers * (size_t)(p->size - 1);
    return p->staging + i * p->slot * dtype_size(p->call->dt);
}

// Returns the address of element i of a buffer, or NULL for no buffer.
static void *element(const struct collective_plan *p, const void *buf, size_t i) {
    return buf ? (char *)(uintptr_t)buf + i * dtype_size(p->call->dt) : NULL;
}

// Returns the elements that move between the rank and a peer, or itself.
static struct collective_transfer moved(const struct collective_plan *p, int peer) {
    struct collective_span mine = collective_piece(p, p->rank), theirs = collective_piece(p, peer);
    size_t e = dtype_size(p->call->dt);
    return (struct collective_transfer){.send = element(p, p->call->send, theirs.at),
                                        .recv = element(p, p->call->recv, collective_recv_offset(p, peer)),
                                        .send_bytes = p->send_blocks ? theirs.count * e : 0,
                                        .recv_bytes = collective_sends(p, peer) ? mine.count * e : 0};
}

struct collective_transfer collective_own_copy(const struct collective_plan *p) {
    struct collective_transfer own = moved(p, p->rank);
    bool copied = p->row->result == RESULT_MOVED && own.send != own.recv;
    return copied ? own : (struct collective_transfer){0};
}

struct collective_transfer collective_step(const struct collective_plan *p, size_t step, int peer) {
    const struct collective_call *c = p->call;
    struct collective_span mine = collective_piece(p, p->rank), theirs = collective_piece(p, peer);
    size_t e = dtype_size(c->dt), done = step * p->slot;
    if (p->row->result == RESULT_MOVED) return moved(p, peer);
    if (step < p->chunks)
        return (struct collective_transfer){.send = element(p, c->send, theirs.at + done),
                                            .recv = slot_of(p, step, peer),
                                            .send_bytes = chunk(theirs, done, p->slot) * e,
                                            .recv_bytes = chunk(mine, done, p->slot) * e};
    return (struct collective_transfer){.send = element(p, c->recv, mine.at),
                                        .recv = element(p, c->recv, theirs.at),
                                        .send_bytes = mine.count * e,
                                        .recv_bytes = theirs.count * e};
}

struct reduce_args collective_step_sum(const struct collective_plan *p, size_t step, const void **inputs) {
    const struct collective_call *c = p->call;
    struct collective_span mine = collective_piece(p, p->rank);
    size_t done = step * p->slot, n = step < p->chunks ? chunk(mine, done, p->slot) : 0;
    if (n == 0) return (struct reduce_args){0};
    for (int i = 0; i < p->size; i++)
        inputs[i] = i == p->rank ? element(p, c->send, mine.at + done) : slot_of(p, step, i);
    return (struct reduce_args){.out = element(p, c->recv, collective_sum_offset(p) + done),
                                .inputs = inputs,
                                .count = p->size,
                                .n = (int64_t)n,
                                .dt = c->dt,
                                .how = c->reduction};
}

// ---------------------------------------------------------------- actions
size_t collective_actions(const struct collective_plan *p) {
    return 3 * p->chunks + 2 * (p->steps - p->chunks);
}

struct collective_action collective_action(const struct collective_plan *p, size_t i) {
    size_t chunks = p->chunks, k = (i + 1) / 3;
    if (i >= 3 * chunks)
        return (struct collective_action){i == 3 * chunks ? ACTION_BEGIN : ACTION_END, chunks};
    if (p->buffers == 1) return (struct collective_action){i % 3, i / 3};
    // | begin 0, end 0 | begin 1, sum 0, end 1 | begin 2, sum 1, end 2 | .. | sum of the last |
    if (i < 2) return (struct collective_action){i ? ACTION_END : ACTION_BEGIN, 0};
    if (i % 3 == 2)
        return (struct collective_action){k < chunks ? ACTION_BEGIN : ACTION_SUM, k < chunks ? k : k - 1};
    return i % 3 == 0 ? (struct collective_action){ACTION_SUM, i / 3 - 1}
                      : (struct collective_action){ACTION_END, i / 3};
}

// ---------------------------------------------------------------- bytes
struct collective_volume collective_volume_with(const struct collective_plan *p, int peer) {
    struct collective_volume v = {0};
    size_t e = dtype_size(p->call->dt), mine = collective_piece(p, p->rank).count * e;
    size_t theirs = collective_piece(p, peer).count * e;
    bool back = p->row->result == RESULT_SUMMED_IN_PIECES;
    if (peer == p->rank) return v;
    if (p->send_blocks) v.sent = theirs + (back ? mine : 0);
    if (collective_sends(p, peer)) v.received = mine + (back ? theirs : 0);
    return v;
}

struct collective_volume collective_volume(const struct collective_plan *p) {
    struct collective_volume all = {0};
    for (int i = 0; i < p->size; i++) {
        struct collective_volume v = collective_volume_with(p, i);
        all.sent += v.sent;
        all.received += v.received;
    }
    return all;
}

struct collective_volume collective_native_volume(const struct collective_plan *p) {
    size_t bytes = p->call->count * dtype_size(p->call->dt), size = (size_t)p->size;
    if (p->row->result != RESULT_SUMMED_IN_PIECES) return collective_volume(p);
    bytes = 2 * (size - 1) * bytes / size;
    return (struct collective_volume){bytes, bytes};
}

// ---------------------------------------------------------------- groups
struct collective_team collective_within(int rank, int group) {
    return group ? (struct collective_team){rank / group * group, 1, group} : (struct collective_team){0};
}

struct collective_team collective_across(int rank, int size, int group) {
    return group ? (struct collective_team){rank % group, group, size / group} : (struct collective_team){0};
}

static void *block(const void *buf, size_t i, const struct collective_call *c) {
    return buf ? (char *)(uintptr_t)buf + i * c->count * dtype_size(c->dt) : NULL;
}

int collective_legs(const struct collective_call *c, int size, int group) {
    bool split = c->primitive == COLLECTIVE_REDUCE_SCATTER || c->primitive == COLLECTIVE_ALL_GATHER;
    return split && collective_is_grouped(group, size) ? size / group + 1 : 1;
}

struct collective_call collective_leg(const struct collective_call *c, int rank, int size, int group, int k) {
    int legs = collective_legs(c, size, group), index = group ? rank % group : 0;
    bool sums = c->primitive == COLLECTIVE_REDUCE_SCATTER, across = k == (sums ? legs - 1 : 0);
    struct collective_call leg = *c;
    if (legs == 1) return leg;
    size_t first =
        (size_t)(sums ? k : k - 1) * (size_t)group;  // first block of the group that this leg sums or gathers
    leg.team = across ? collective_across(rank, size, group) : collective_within(rank, group);
    leg.stride = across ? (size_t)group * c->count : 0;
    if (sums) {
        leg.send = block(c->send, across ? (size_t)index : first, c);
        leg.recv = across ? c->recv : block(c->send, first + (size_t)index, c);
    } else {
        leg.send = across ? c->send : block(c->recv, first + (size_t)index, c);
        leg.recv = block(c->recv, across ? (size_t)index : first, c);
    }
    return leg;
}
