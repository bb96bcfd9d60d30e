// The gaps of a rank's steps in which computing stood still for a transfer, as split.h tells them one by one: whom it waited
// for, the longest of waiting and of exposed communication, and, for a trace, all of them.
//
// Memory      Bounded, and all of it taken by gaps_create.
// Threads     The caller's lock guards it.
#ifndef STARRING_SHARED_TIME_GAPS_H
#define STARRING_SHARED_TIME_GAPS_H

#include "shared/core/unit.h"
#include "shared/time/split.h"

#define GAPS_KEPT     4096       // of exposed communication, and of waiting: the longest
#define GAPS_LEAST_NS 1000000    // no shorter one is among them
#define GAPS_TRACED   (1 << 18)  // kept of a run that is traced: the first

enum transfer_kind { TRANSFER_WEIGHTS, TRANSFER_GRADIENTS, TRANSFER_CONTROL, TRANSFER_KINDS };
const char *transfer_kind_name(enum transfer_kind k);  // "weights", ..

struct transfer {
    enum transfer_kind kind;
    int unit;        // of the layout; -1: none
    uint64_t bytes;  // payload that this rank sends, or, where it only receives, receives
};

struct gap {
    struct split_gap of;
    struct transfer what;
};

struct gaps {
    struct gap *exposed, *waits, *all;  // in no order; all: in order of time
    size_t exposed_count, wait_count, all_count, all_room;
    double *waited;  // (ranks) seconds of waiting for each rank, which was ready last
    int ranks;
    uint64_t lost;  // of those for a trace, what found no room
};
struct gaps *gaps_create(int ranks, bool traced);
void gaps_destroy(struct gaps **g);
void gaps_note(struct gaps *g, const struct gap *one);

#endif
