// The order in which a rank's operations start, over all its communicators. The ranks of a process are told
// apart by their numbers: there is one world at a time.
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/emulation/nccl/nccl_impl.h"

#define LAUNCH_ORDER 22600

static struct {
    pthread_mutex_t lock;
    struct rank {
        int communicators;
        const struct ncclComm *calling;  // has been called and has not yet answered with success
        uint64_t given, passed;          // turns; passed: of a started batch, or one that ended without
        uint64_t started;
        int running;
    } rank[RANKS_MAX];
} order = {.lock = PTHREAD_MUTEX_INITIALIZER};

static bool keeps_order(void) {
    const char *asked = getenv("NCCL_LAUNCH_ORDER_IMPLICIT");
    return nccl_version() >= LAUNCH_ORDER && asked && strcmp(asked, "1") == 0;
}

static void seal(struct meeting *at, bool sealed) {
    for (int i = 0; i < at->size && at->sealed != sealed; i++) {
        bool shared = false;
        for (int j = 0; j < at->size; j++) shared |= j != i && at->devices[j] == at->devices[i];
        emu_device_seal(at->devices[i], sealed ? 1 : -1, shared);
    }
    at->sealed = sealed;
}

void order_join(struct ncclComm *c) {
    struct rank *r = &order.rank[c->rank];
    if (c->at->joined == c->size) seal(c->at, true);
    pthread_mutex_lock(&order.lock);
    if (r->communicators++ == 0) *r = (struct rank){.communicators = 1};
    bool busy = r->running > 0;
    pthread_mutex_unlock(&order.lock);
    if (busy) emu_note("NCCL: a communicator is created while others of its rank are at work");
}

void order_leave(struct ncclComm *c) {
    struct rank *r = &order.rank[c->rank];
    seal(c->at, false);
    pthread_mutex_lock(&order.lock);
    r->communicators--;
    if (r->calling == c) r->calling = NULL;
    pthread_mutex_unlock(&order.lock);
}

ncclResult_t order_call(struct ncclComm *c) {
    struct rank *r = &order.rank[c->rank];
    pthread_mutex_lock(&order.lock);
    bool racing = r->calling && r->calling != c;
    if (!racing) r->calling = c;
    pthread_mutex_unlock(&order.lock);
    if (!racing) return ncclSuccess;
    return comm_refuse(c, ncclInvalidUsage, "rank %d calls two communicators at once", c->rank);
}

void order_give(struct batch *b) {
    struct rank *r = &order.rank[b->comm->rank];
    pthread_mutex_lock(&order.lock);
    if (r->calling == b->comm) r->calling = NULL;
    b->turn = r->given++;
    r->running++;
    pthread_mutex_unlock(&order.lock);
}

static bool has_turn(const struct batch *b) {
    pthread_mutex_lock(&order.lock);
    bool turn = order.rank[b->comm->rank].passed >= b->turn;
    pthread_mutex_unlock(&order.lock);
    return turn;
}

// With the lock held.
static struct start *start_of(struct meeting *at, uint64_t number) {
    if (number >= at->start_count) {
        size_t count = 2 * (size_t)number + 64;
        at->starts = must(realloc(at->starts, count * sizeof *at->starts));
        for (size_t i = at->start_count; i < count; i++) at->starts[i].rank = -1;
        at->start_count = count;
    }
    return &at->starts[number];
}

int order_start(struct batch *b) {
    struct ncclComm *c = b->comm;
    struct rank *r = &order.rank[c->rank];
    while (keeps_order() && !has_turn(b) && !c->aborted) {
        pthread_mutex_unlock(&c->at->lock);
        nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
        pthread_mutex_lock(&c->at->lock);
    }
    if (c->aborted) return 0;
    pthread_mutex_lock(&order.lock);
    uint64_t others = r->started++ - b->number;
    b->started = true;
    r->passed++;
    pthread_mutex_unlock(&order.lock);
    struct start *first = start_of(c->at, b->number);
    if (first->rank < 0) *first = (struct start){c->rank, others};
    if (first->others == others) return 0;
    c->error =
        comm_refuse(c, ncclInvalidUsage,
                    "another order: rank %d starts operation %d of a communicator behind %d of others, rank "
                    "%d behind %d",
                    c->rank, (int)b->number, (int)others, first->rank, (int)first->others);
    return -1;
}

void order_end(struct batch *b) {
    struct rank *r = &order.rank[b->comm->rank];
    pthread_mutex_lock(&order.lock);
    r->running--;
    if (!b->started) r->passed++;
    pthread_mutex_unlock(&order.lock);
}
