// The measurements of one rank, and the predictions for it. They become DIR/ranks/ROLE-RANK.json
// (shared/report/summary.h).
#ifndef STARRING_SHARED_REPORT_RANK_REPORT_H
#define STARRING_SHARED_REPORT_RANK_REPORT_H

#include <stdio.h>
#include <time.h>

#include "kernels/spans.h"
#include "shared/core/topology_row.h"
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
    double not_training_s;             // seconds of this time that are not training
};

// A role without its own report: a star's scheduler. It sends its figures to the servers when the job ends.
struct scheduler_figures {
    bool known;
    double cpu_s;  // CPU seconds since the start of the job
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
    double bytes;             // bytes of all its files
    double seconds_writing;   // from the first byte of a file until it is on disk, summed over all files
    // How often, and how long, the loop or the device waited for a checkpoint.
    int64_t slowed;
    double slowed_seconds, slowed_most;
    char why[320];  // worker 0: why the last one that was given up failed; "": none did
};

// The figures stored in the report itself, as rows of shared/report/figures.c: type, member, and a row of struct
// figure (shared/report/figure.h) without its offset. To measure one more figure, add a row here and set the member.
#define RANK_FIGURES(F)                                                                                      \
    F(size_t, transport_peak_bytes, "transport_peak_bytes", "bytes",                                         \
      "the most frames in flight at one time (`ps:*`), which the ledger does not count: "                    \
      "gradients that a server holds until it adds them, and copies of its answers until they "              \
      "are sent (snapshots; over tcp also of `ps:async` and with `--elastic`)",                              \
      .in = IN_MEMORY, .join = JOIN_BOTH, .to = "totals.transport_bytes", .title = "frames held")            \
    F(size_t, transport_bound_bytes, "transport_bound_bytes", "bytes",                                       \
      "upper limit of `transport_peak_bytes` if no message is repeated; 0 unless `ps:*`", .in = IN_MEMORY,   \
      PREDICTED("frames held"), .measured = "transport_peak_bytes",                                          \
      .note =                                                                                                \
          "at most, not in the memory above: gradients until they are added, answers until they "            \
          "are sent")                                                                                        \
    F(size_t, rss_bytes, "rss_bytes", "bytes",                                                               \
      "peak resident set of the rank's process; ranks that are threads share one", .in = IN_MEMORY)          \
    F(uint64_t, late_allocations, "late_allocations", NULL, "device allocations after the first step",       \
      .in = IN_MEMORY)                                                                                       \
    F(double, sent_per_step, "sent_per_step", "bytes", "payload sent, mean over the steps", .in = IN_WIRE,   \
      .join = JOIN_BOTH, .to = "totals.sent_per_step", .compared_as = "sent per step", .title = "sent/step") \
    F(double, received_per_step, "received_per_step", "bytes", "payload received, mean over the steps",      \
      .in = IN_WIRE, .join = JOIN_BOTH, .to = "totals.received_per_step",                                    \
      .compared_as = "received per step", .title = "recv/step")                                              \
    F(double, control_sent_per_step, "control_sent_per_step", "bytes",                                       \
      "sent besides payload, mean over the steps: headers, scalars, barriers, and weights for "              \
      "a snapshot or for `weights/`",                                                                        \
      .in = IN_WIRE, .join = JOIN_BOTH, .to = "totals.control_sent_per_step")                                \
    F(double, control_received_per_step, "control_received_per_step", "bytes",                               \
      "received besides payload, mean over the steps", .in = IN_WIRE, .join = JOIN_BOTH,                     \
      .to = "totals.control_received_per_step")                                                              \
    F(double, across_sent_per_step, "across.sent_per_step", "bytes", "mean over the steps")                  \
    F(double, across_received_per_step, "across.received_per_step", "bytes", "mean over the steps")          \
    F(uint64_t, repeats, "repeated.messages", NULL, NULL)                                                    \
    F(uint64_t, repeated_bytes, "repeated.bytes", "bytes", NULL)                                             \
    F(double, local_sent_per_step, "local.sent_per_step", "bytes", "mean over the steps")                    \
    F(double, local_received_per_step, "local.received_per_step", "bytes", "mean over the steps")            \
    F(double, down_per_step, "offload.down_per_step", "bytes",                                               \
      "from the device to the host, mean over the steps")                                                    \
    F(double, up_per_step, "offload.up_per_step", "bytes",                                                   \
      "from the host to the device, mean over the steps")                                                    \
    F(double, read_per_step, "offload.read_per_step", "bytes", "from disk, mean over the steps")             \
    F(double, written_per_step, "offload.written_per_step", "bytes", "to disk, mean over the steps")         \
    F(int64_t, updates, "updates", NULL,                                                                     \
      "applied since the rank started: by a worker's loop, or to every key of a server")                     \
    F(int64_t, samples_per_update, "samples_per_update", "sequences",                                        \
      "in the global batch; under `ps:async` in one worker's share of it")                                   \
    F(int64_t, samples_counted, "samples_counted", "sequences",                                              \
      "whose gradients were applied, where they are counted. A worker with `--elastic`, "                    \
      "`ps:backup` or `ps:quorum`: the job's, since its first step. A server of "                            \
      "an asynchronous star: those in every key. Else null",                                                 \
      .null_if_zero = true)                                                                                  \
    F(double, consensus_distance, "consensus_distance", NULL,                                                \
      "of `gossip`, at the end: ||x - mean||^2, x being a rank's masters and mean the mean of "              \
      "all ranks'; in summary.json the mean over the ranks. `weights_hash` and evaluations are "             \
      "those of the mean",                                                                                   \
      .null_if_zero = true, .join = JOIN_MEAN_OF_WORKERS)                                                    \
    F(int64_t, late_steps, "late_steps", NULL,                                                               \
      "steps that the worker computed although their updates were made without it: its "                     \
      "gradients arrived too late",                                                                          \
      OF_THE_LATE, .join = JOIN_EACH)                                                                        \
    F(int64_t, missed_steps, "missed_steps", NULL,                                                           \
      "steps that the worker did not compute, because they had ended before it began them. Its "             \
      "means over the steps leave them out",                                                                 \
      OF_THE_LATE, .join = JOIN_EACH)                                                                        \
    F(int64_t, dropped_pushes, "dropped_pushes", NULL,                                                       \
      "gradients of single keys that a server applied to no update: older than "                             \
      "`parameter_server.max_staleness`, or too late for their step. A batch is one push of "                \
      "each key. `staleness` leaves them out",                                                               \
      OF_THE_DROPPED, .join = JOIN_EACH)                                                                     \
    F(int64_t, batches, "batches", NULL,                                                                     \
      "of the budget that all workers share, done by the worker since `resumed_from`", OF_A_BUDGET,          \
      .join = JOIN_EACH)                                                                                     \
    F(int64_t, tokens, "tokens", "tokens", "in the batches that updated something, without padding",         \
      OF_A_BUDGET)                                                                                           \
    F(int64_t, skipped, "skipped", NULL, "batches that updated nothing", OF_A_BUDGET, .join = JOIN_SUM)      \
    F(int64_t, tail_batches, "tail_batches", NULL,                                                           \
      "batches done in the tail: after the first worker had no batch left", OF_A_BUDGET, .join = JOIN_SUM)   \
    F(double, tail_seconds, "tail_seconds", "s",                                                             \
      "length of the tail: from the time at which the first worker had no batch left to the "                \
      "end of the last worker's last batch",                                                                 \
      OF_A_BUDGET, .join = JOIN_MOST)

struct stall_report;
struct rank_report {
    char role[16];  // "worker", "server", "scheduler"
    int rank;
    uint64_t job;                   // struct topology's
    struct topology_memory memory;  // predicted; a worker's includes the model's activations
    size_t peak_bytes[MEM_CLASSES];
    struct job_resident resident;  // worker 0: the memory of the whole job, after the last step
    struct wire_prediction wire;
    struct wire_later wire_later;
    int64_t steps;                      // divisor of all per-step figures
    uint64_t faults[WIRE_FAULTS];       // faults from struct wire_count
    struct time_split time;             // the time of all steps on this rank
    struct stall_report *stall_report;  // shared/time/stall_report.h; owned by the report's owner; NULL: none
    double time_check;                  // sum of time's parts / duration of the steps by the loop's own clock
    int64_t clock_error_ns;             // largest error of peers' times on this rank's clock
    struct server_time server_time;
    struct rank_span span;
    bool may_be_left_out;  // steps may be closed without this rank
    bool drops;            // a server drops gradients that are too old or too late
    bool independent;      // ranks share a budget of batches: this rank's batches are counted
    struct scheduler_figures scheduler;
    struct checkpoint_report checkpoints;
    struct staleness staleness;
    bool on_gpu;  // if true, the following is read after the last step, before any rank freed memory:
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
    int64_t params;         // P, the parameters without padding
    int64_t frozen_params;  // F, LoRA's frozen parameters
    struct run_flops flops;
    double tokens_per_sequence, padding;  // tokens without padding; the share of padding in the computed ones
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

// Takes a rank's prediction. r->role is set. c: the configuration of the run, not of a topology inside another one.
void rank_report_predict(struct rank_report *r, const struct config *c, const struct prediction *p);
// Return the predicted payload per step, the mean over r->steps; 0 without steps: nothing was sent.
static inline double rank_predicted_sent(const struct rank_report *r) {
    const struct wire_prediction *w = &r->wire;
    return r->steps > 0 ? wire_mean(w->sent_per_step, w->later.sent_per_step, r->steps, r->wire_later.steps)
                        : 0;
}
static inline double rank_predicted_received(const struct rank_report *r) {
    const struct wire_prediction *w = &r->wire;
    return r->steps > 0
               ? wire_mean(w->received_per_step, w->later.received_per_step, r->steps, r->wire_later.steps)
               : 0;
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
