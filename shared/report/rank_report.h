// The measurements of one rank, and the predictions for it. They become DIR/ranks/ROLE-RANK.json
// (shared/report/summary.h).
#ifndef STARRING_SHARED_REPORT_RANK_REPORT_H
#define STARRING_SHARED_REPORT_RANK_REPORT_H

#include <stdio.h>
#include <time.h>

#include "kernels/spans.h"
#include "shared/core/topology.h"
#include "shared/device/device_facts.h"
#include "shared/model/model.h"
#include "shared/report/job_resident.h"
#include "shared/time/split.h"

// The time in which a rank trains: from the start of its first step to the end of its last one (a server: from its
// first gradient to its last update). In a process with several ranks, cpu_*_ns are the whole process's.
struct rank_span {
    int64_t begin_ns,
        end_ns;  // CLOCK_MONOTONIC, shared by all processes of a machine; 0: no training
    int64_t cpu_begin_ns, cpu_end_ns;  // CLOCK_PROCESS_CPUTIME_ID at the same times
    double aside_s;                    // of this time, seconds that are not training
};

// A role without its own report: a star's scheduler. It sends its figures to the servers when the job ends.
struct helper_figures {
    bool known;
    double cpu_s;  // from the start of the job
    double rss_bytes, control_sent, control_received;
};

// A server's seconds, summed over all its shard threads: from the first gradient to the last answer. The fields add up
// to total.
struct server_time {
    int threads;  // 0: no server
    double receive, sum, hold, wait, update, reply, total;
};

// The cost of a rank's checkpoints (shared/train/saver.h).
struct checkpoint_report {
    int64_t written, failed;  // files of this rank; worker 0: checkpoints of the run
    double bytes;             // of all its files
    double seconds_writing;   // from the first byte of a file until it is on disk, summed over all files
    // How often, and how long, the loop or the device waited for a checkpoint.
    int64_t slowed;
    double slowed_seconds, slowed_most;
    char why[320];  // worker 0: why the last one that was given up failed; "": none did
};

// The figures stored in the report itself, as rows of shared/report/figures.c: type, member, and a row of struct
// figure (shared/report/figure.h) without its offset. To measure one more figure, add a row here and set the member.
#define RANK_FIGURES(F)                                                                                                           \
    F(size_t, transport_peak_bytes, "transport_peak_bytes", "bytes",                                                              \
      "frames held in flight (`ps:*`), apart from the ledger: a server's gradients that wait for their turn, and its answers "    \
      "that are copies until they are sent (snapshots; over tcp also of `ps:async` and with `--elastic`)",                        \
      .in = IN_MEMORY, .join = JOIN_BOTH, .to = "totals.transport_bytes")                                                         \
    F(size_t, transport_bound_bytes, "transport_bound_bytes", "bytes",                                                            \
      "what `transport_peak_bytes` can be at most, as `--dry-run` says it, if no message is repeated",                            \
      .in = IN_MEMORY)                                                                                                            \
    F(size_t, rss_bytes, "rss_bytes", "bytes",                                                                                    \
      "peak resident set of the rank's process; ranks that are threads share one", .in = IN_MEMORY)                               \
    F(uint64_t, late_allocations, "late_allocations", NULL, "device allocations after the first step",                            \
      .in = IN_MEMORY)                                                                                                            \
    F(double, sent_per_step, "sent_per_step", "bytes", "payload, mean over the steps", .in = IN_WIRE,                             \
      .join = JOIN_BOTH, .to = "totals.sent_per_step", .words = "sent per step")                                                  \
    F(double, received_per_step, "received_per_step", "bytes", "likewise, received", .in = IN_WIRE,                               \
      .join = JOIN_BOTH, .to = "totals.received_per_step", .words = "received per step")                                          \
    F(double, control_sent_per_step, "control_sent_per_step", "bytes",                                                            \
      "everything else, mean over the steps: headers, scalars, barriers, and weights that move for a snapshot or for `weights/`", \
      .in = IN_WIRE, .join = JOIN_BOTH, .to = "totals.control_sent_per_step")                                                     \
    F(double, control_received_per_step, "control_received_per_step", "bytes", "likewise, received",                              \
      .in = IN_WIRE, .join = JOIN_BOTH, .to = "totals.control_received_per_step")                                                 \
    F(double, across_sent_per_step, "across.sent_per_step", "bytes", "mean over the steps")                                       \
    F(double, across_received_per_step, "across.received_per_step", "bytes", "likewise")                                          \
    F(uint64_t, repeats, "repeated.messages", NULL, NULL)                                                                         \
    F(uint64_t, repeated_bytes, "repeated.bytes", "bytes", NULL)                                                                  \
    F(double, local_sent_per_step, "local.sent_per_step", "bytes", "mean over the steps")                                         \
    F(double, local_received_per_step, "local.received_per_step", "bytes", "likewise, received")                                  \
    F(double, down_per_step, "offload.down_per_step", "bytes",                                                                    \
      "mean over the steps: from the device to the host")                                                                         \
    F(double, up_per_step, "offload.up_per_step", "bytes", "from the host to the device")                                         \
    F(double, read_per_step, "offload.read_per_step", "bytes", "from disk")                                                       \
    F(double, written_per_step, "offload.written_per_step", "bytes", "to disk")                                                   \
    F(int64_t, updates, "updates", NULL,                                                                                          \
      "applied since it started: by a worker's loop, or to every key of a server")                                                \
    F(int64_t, samples_per_update, "samples_per_update", "sequences",                                                             \
      "of the global batch; of `ps:async` of one worker's share")                                                                 \
    F(int64_t, samples_counted, "samples_counted", "sequences",                                                                   \
      "of a worker with `--elastic`, `ps:backup`, `ps:quorum`: those of the job whose gradients were applied since its first "    \
      "step; of a server with `pushes_per_update` above 1: those in every key; else null",                                        \
      .null_if_zero = true)                                                                                                       \
    F(double, consensus_distance, "consensus_distance", NULL,                                                                     \
      "of `gossip`: the squared differences between this rank's last masters and the mean of all ranks', added",                  \
      .null_if_zero = true)                                                                                                       \
    F(int64_t, late_steps, "late_steps", NULL,                                                                                    \
      "that this worker computed in vain: its gradients came when the update had been made without it",                           \
      OF_THE_LATE)                                                                                                                \
    F(int64_t, missed_steps, "missed_steps", NULL,                                                                                \
      "that were over before this worker came to them; its means over the steps are over the others",                             \
      OF_THE_LATE)                                                                                                                \
    F(int64_t, dropped_pushes, "dropped_pushes", NULL,                                                                            \
      "of single keys, whose gradients no update has: older than `max_staleness`, or too late for their step",                    \
      OF_THE_DROPPED)                                                                                                             \
    F(int64_t, batches, "batches", NULL, "that this worker has done of the budget", OF_A_BUDGET)                                  \
    F(int64_t, tokens, "tokens", "tokens", "of those that updated something, without padding", OF_A_BUDGET)                       \
    F(int64_t, skipped, "skipped", NULL, "of these, those that updated nothing", OF_A_BUDGET)                                     \
    F(int64_t, tail_batches, "tail_batches", NULL, "of these, those done when some worker had no work left",                      \
      OF_A_BUDGET)                                                                                                                \
    F(double, tail_seconds, "tail_seconds", "s", "for how long some workers, not all, were at work",                              \
      OF_A_BUDGET)

struct moments;
struct rank_report {
    char role[16];  // "worker", "server", "scheduler"
    int rank;
    uint64_t job;                   // struct topology's
    struct topology_memory memory;  // predicted; a worker's includes the model's activations
    size_t peak_bytes[MEM_CLASSES];
    struct job_resident resident;  // worker 0: of the whole job, after the last step
    struct wire_prediction wire;
    struct wire_later wire_later;
    int64_t steps;                 // divisor of all per-step figures
    uint64_t faults[WIRE_FAULTS];  // struct wire_count's
    struct time_split time;        // of all steps on this rank
    struct moments *moments;       // shared/time/moments.h; owned by the report's owner; NULL: none
    double time_check;             // sum of time's parts / duration of the steps by the loop's own clock
    int64_t clock_error_ns;        // largest error of peers' times on this rank's clock
    struct server_time server_time;
    struct rank_span span;
    bool waits_not;  // steps may be closed without this rank
    bool drops;      // a server drops gradients that are too old or too late
    bool shares;     // ranks share a budget of batches: this rank's batches are counted
    struct helper_figures scheduler;
    struct checkpoint_report checkpoints;
    struct staleness staleness;
    bool on_gpu;  // if so, read after the last step, before any rank freed memory:
    struct device_facts device;
    struct device_memory device_memory;
#define RANK_MEMBER(type, name, ...) type name;
    RANK_FIGURES(RANK_MEMBER)
#undef RANK_MEMBER
};

// FLOP per token: the model's, and those that the backward pass recomputes (shared/model/recompute.h).
struct run_flops {
    struct token_flops model, again;
};

// Facts that only worker 0 has, in addition to its report.
struct run_facts {
    int64_t params;  // P, without padding
    struct run_flops flops;
    double tokens_per_sequence, padding;  // without padding; share of padding in what was computed
    double wall_seconds;                  // from the start of the rank to its end
    uint64_t weights_hash;
    bool has_hash, interrupted;
    int64_t resumed_from;         // steps before the checkpoint it resumed from; 0: none
    int64_t place;                // where ranks share a budget: finished steps of the run; else 0
    const char *data;             // description of the token stream
    const char *medium, *launch;  // struct topology's
    const char *cpu_kernel;       // device_cpu_kernel
    struct head_plan head;
};

// Writes a star's job number, or a hash, as in reports: 16 hexadecimal digits. Returns name.
#define REPORT_JOB_MAX 20
static inline const char *report_job_name(uint64_t job, char name[REPORT_JOB_MAX]) {
    snprintf(name, REPORT_JOB_MAX, "%016llx", (unsigned long long)job);
    return name;
}

static inline void rank_span_begin(struct rank_span *s) {
    s->begin_ns = now_ns();
    s->cpu_begin_ns = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
}
static inline void rank_span_end(struct rank_span *s) {
    s->end_ns = now_ns();
    s->cpu_end_ns = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
}

// Takes a rank's counters after `steps` steps. For a server of an interrupted asynchronous job, steps may include a
// fraction.
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
    r->local_sent_per_step = (double)atomic_load(&wire->local_sent) / per;
    r->local_received_per_step = (double)atomic_load(&wire->local_received) / per;
    r->down_per_step = (double)atomic_load(&wire->host_down) / per;
    r->up_per_step = (double)atomic_load(&wire->host_up) / per;
    r->read_per_step = (double)atomic_load(&wire->disk_read) / per;
    r->written_per_step = (double)atomic_load(&wire->disk_written) / per;
}

#endif
