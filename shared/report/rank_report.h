// What one rank has measured of a run, beside what was predicted for it. It becomes DIR/ranks/ROLE-RANK.json
// (shared/report/summary.h).
#ifndef STARRING_SHARED_REPORT_RANK_REPORT_H
#define STARRING_SHARED_REPORT_RANK_REPORT_H

#include <time.h>

#include "shared/core/topology.h"
#include "shared/device/device_facts.h"
#include "shared/memory/job_resident.h"
#include "shared/time/split.h"

// The part of a run in which a rank trains: from the beginning of its first step to the end of its last one (a server:
// from its first gradient to its last update). Of a process with several ranks, cpu_*_ns are the process's.
struct rank_span {
    int64_t begin_ns,
        end_ns;  // CLOCK_MONOTONIC, which all processes of a machine share; 0: nothing was trained
    int64_t cpu_begin_ns, cpu_end_ns;  // CLOCK_PROCESS_CPUTIME_ID at the same moments
    double aside_s;                    // of it, in what is no training
};

// A role without ranks of its own: a star's scheduler. Its figures travel to the servers when the job ends.
struct helper_figures {
    bool known;
    double cpu_s;  // from the start of the job
    double rss_bytes, control_sent, control_received;
};

// Of a server, seconds of all its shard threads added: from the first gradient to the last answer. The parts add up to
// total.
struct server_time {
    int threads;  // 0: no server
    double receive, sum, hold, wait, update, reply, total;
};

// What a rank's checkpoints cost (shared/train/saver.h).
struct checkpoint_report {
    int64_t written, failed;  // files of this rank; worker 0: checkpoints of the run
    double bytes;             // of its files, all of them
    double seconds_writing;   // from the first byte of a file until it is on disk, all of them
    // How often the loop or the device waited for a checkpoint, and for how long.
    int64_t slowed;
    double slowed_seconds, slowed_most;
    char why[320];  // worker 0: why the last one was given up; "": none was
};

struct moments;
struct rank_report {
    char role[16];  // "worker", "server", "scheduler"
    int rank;
    uint64_t job;                   // struct topology's
    struct topology_memory memory;  // predicted; a worker's with the model's activations
    size_t peak_bytes[MEM_CLASSES];
    size_t transport_peak_bytes;   // frames held in flight (star), apart from the ledger
    size_t rss_bytes;              // peak resident set of the process
    struct job_resident resident;  // worker 0's: of the whole job, behind the last step
    uint64_t late_allocations;     // device allocations after the first step: 0
    struct wire_prediction wire;
    struct wire_later wire_later;
    int64_t steps;                                          // what is measured per step was divided by
    double sent_per_step, received_per_step;                // payload bytes a step, measured
    double across_sent_per_step, across_received_per_step;  // of these, to and from other groups
    double control_sent_per_step, control_received_per_step;
    uint64_t repeats, repeated_bytes, faults[WIRE_FAULTS];  // struct wire_count's
    double replica_sent_per_step, replica_received_per_step;
    double down_per_step, up_per_step, read_per_step, written_per_step;  // of what is offloaded
    struct time_split time;                                              // of all steps on this rank
    struct moments *moments;  // shared/time/moments.h; whose the report is frees them; NULL: none
    double time_check;        // its parts / what the loop's own clock says that the steps took
    int64_t clock_error_ns;   // of peers' times on this rank's clock, at most
    struct server_time server_time;
    struct rank_span span;
    int64_t updates;             // applied since it started: by a worker's loop, or to every key of a server
    int64_t samples_per_update;  // of the global batch, or of one worker's share (async)
    // Where workers come and go: samples of the job whose gradients were applied since this rank's first step; else 0.
    int64_t samples_counted;
    // Where ranks share a budget of batches (shares): this one's, and of these the ones that updated nothing, and those that it
    // ended when another one had run out of work; for how long some, not all, were at work. Else 0.
    bool shares;
    int64_t batches, skipped, tail_batches;
    double tail_seconds;
    struct helper_figures scheduler;
    struct checkpoint_report checkpoints;
    struct staleness staleness;
    bool on_gpu;  // then, read after the last step and before any rank gave memory back:
    struct device_facts device;
    struct device_memory device_memory;
};

static inline int64_t clock_now_ns(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}
static inline void rank_span_begin(struct rank_span *s) {
    s->begin_ns = clock_now_ns(CLOCK_MONOTONIC);
    s->cpu_begin_ns = clock_now_ns(CLOCK_PROCESS_CPUTIME_ID);
}
static inline void rank_span_end(struct rank_span *s) {
    s->end_ns = clock_now_ns(CLOCK_MONOTONIC);
    s->cpu_end_ns = clock_now_ns(CLOCK_PROCESS_CPUTIME_ID);
}

// What a rank's counters hold after so many steps: of a server of an asynchronous job that was interrupted also a part of one.
static inline void rank_report_count(struct rank_report *r, const struct wire_count *wire, double steps) {
    double per = steps > 0 ? steps : 1.0;
    r->steps = (int64_t)steps;
    r->sent_per_step = (double)atomic_load(&wire->payload_sent) / per;
    r->received_per_step = (double)atomic_load(&wire->payload_received) / per;
    r->across_sent_per_step = (double)atomic_load(&wire->across_sent) / per;
    r->across_received_per_step = (double)atomic_load(&wire->across_received) / per;
    r->control_sent_per_step = (double)atomic_load(&wire->control_sent) / per;
    r->control_received_per_step = (double)atomic_load(&wire->control_received) / per;
    r->repeats = atomic_load(&wire->repeats);
    r->repeated_bytes = atomic_load(&wire->repeated_bytes);
    for (int i = 0; i < WIRE_FAULTS; i++) r->faults[i] = atomic_load(&wire->faults[i]);
    r->replica_sent_per_step = (double)atomic_load(&wire->replica_sent) / per;
    r->replica_received_per_step = (double)atomic_load(&wire->replica_received) / per;
    r->down_per_step = (double)atomic_load(&wire->host_down) / per;
    r->up_per_step = (double)atomic_load(&wire->host_up) / per;
    r->read_per_step = (double)atomic_load(&wire->disk_read) / per;
    r->written_per_step = (double)atomic_load(&wire->disk_written) / per;
}

#endif
