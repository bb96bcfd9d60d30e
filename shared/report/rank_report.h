// What one rank has measured of a run, beside what was predicted for it. It becomes DIR/ranks/ROLE-RANK.json
// (shared/report/summary.h).
#ifndef STARRING_SHARED_REPORT_RANK_REPORT_H
#define STARRING_SHARED_REPORT_RANK_REPORT_H

#include "shared/core/topology.h"
#include "shared/device/device_facts.h"

// Seconds of the whole run on this rank. The compute stream is busy (forward, backward, optimizer), or it and the host
// stand still: for transfers (comm_exposed) or for peers (wait).
struct time_split {
    double data;  // reading batches: at most what the device did not outlast
    double forward;
    double backward;  // with the logits and the loss of training
    double optimizer;
    double comm_exposed;
    double comm_overlapped;  // transfers under way while the compute stream was busy
    double wait;
    double total;
};

struct rank_report {
    char role[16];  // "worker", "server", "scheduler"
    int rank;
    uint64_t job;                   // struct topology's
    struct topology_memory memory;  // predicted; a worker's with the model's activations
    size_t peak_bytes[MEM_CLASSES];
    size_t transport_peak_bytes;  // frames held in flight (star), apart from the ledger
    size_t rss_bytes;             // peak resident set of the process
    uint64_t late_allocations;    // device allocations after the first step: 0
    struct wire_prediction wire;
    double sent_per_step, received_per_step;  // payload bytes a step, measured
    double control_sent_per_step, control_received_per_step;
    struct time_split time;
    struct staleness staleness;
    bool on_gpu;  // then, read after the last step and before any rank gave memory back:
    struct device_facts device;
    struct device_memory device_memory;
};

// What a rank's counters hold after so many steps.
static inline void rank_report_count(struct rank_report *r, const struct wire_count *wire, int64_t steps) {
    double per = steps > 0 ? (double)steps : 1.0;
    r->sent_per_step = (double)atomic_load(&wire->payload_sent) / per;
    r->received_per_step = (double)atomic_load(&wire->payload_received) / per;
    r->control_sent_per_step = (double)atomic_load(&wire->control_sent) / per;
    r->control_received_per_step = (double)atomic_load(&wire->control_received) / per;
}

#endif
