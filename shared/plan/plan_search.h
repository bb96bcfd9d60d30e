// Every way of training a model that the program knows and that fits: topologies, knobs (what is offloaded, what is
// computed again) and micro-batches, each predicted as --dry-run predicts it, fastest first.
//
// A candidate is the caller's options and a few configuration keys behind them, so that what is printed can be typed.
// A setting that the configuration refuses is no candidate; a knob that changes neither memory nor bytes is left out. Choices
// that the command line names itself (--topology, --batch, a knob's key) stay as they are; a file's topology, batch and knobs are
// one plan of many.
#ifndef STARRING_SHARED_PLAN_PLAN_SEARCH_H
#define STARRING_SHARED_PLAN_PLAN_SEARCH_H

#include "shared/config/cli.h"
#include "shared/config/config.h"
#include "shared/core/topology.h"

// ---------------------------------------------------------------- rates
// How long a step takes by prediction: bytes and flops divided by rates. An estimate that puts plans in order; only a
// run says how fast it is.
//
//     compute   (flops of the model + what is computed again) / flops a second
//     wire      the busiest rank's bytes, sent or received, / bytes a second; the same time as compute, as far as it goes
//     update    after the last gradient: the largest of
//                   the optimizer's bytes / the bandwidth of the memory where the states are
//                   what passes between host and device / that link's bandwidth
//                   what is read and written on disk / the disk's bandwidth
//               which overlap, unit by unit; where the device's memory is the host's, the copies take of the bandwidth that the
//               update has, and the first two add up
//     step      max(compute, wire) + update
struct plan_rates {
    double flops;          // a second, that products reach
    double wire;           // bytes a second of a rank's link, each way
    double device_memory;  // bytes a second
    double host_memory;    // likewise
    double host_link;      // between host and device, bytes a second
    double disk;           // bytes a second
};

// A rate as an option of the command and as a member of its document: what it is when nothing is said of it.
struct plan_rate {
    const char *option, *unit;  // "tflops"; "Tflop/s"
    double per_unit;            // what one unit is in plan_rates
    double cpu, gpu;            // defaults, in units
    size_t member;              // offset in struct plan_rates
};
extern const struct plan_rate plan_rates_list[];  // ends with a row without an option
double plan_rate_of(const struct plan_rates *rates, const struct plan_rate *r);  // per second
void plan_rate_set(struct plan_rates *rates, const struct plan_rate *r, double per_second);

struct plan_step {
    double compute_s, again_s, wire_s, update_s, total_s;  // compute_s without again_s
    const char *bound;  // what the step waits for most: "compute", "wire", "memory", "host link" or "disk"
};

// ---------------------------------------------------------------- plans
#define PLAN_KNOBS 3  // rows of plan_knobs

// The share of this machine's memory and disk that a plan leaves free, where the caller has not named limits: the larger of the two.
#define PLAN_RESERVE_SHARE 0.05
#define PLAN_RESERVE_BYTES ((double)(1 << 30))

// A configuration key and its values, from the fastest to the one that saves most. A value that is NULL leaves the key
// out, or says "none" where something else would follow from the caller's file.
struct plan_knob {
    const char *name, *path;
    const char *values[4];    // ends with ""
    const char *folder_path;  // the key of the folder that "nvme" writes to
};
extern const struct plan_knob plan_knobs[PLAN_KNOBS];

struct plan_question {
    const struct topology_table *topologies;
    const struct cli_args *args;  // the caller's options
    const char *topology;         // the only one to be tried; NULL: all
    double device_bytes;          // a worker's limit
    // Limits of all roles together. 0: not said, what is free on this machine less the reserve; INFINITY: none.
    double host_bytes, disk_bytes;
    int64_t most_batch;  // largest micro-batch tried
    struct plan_rates rates;
};

struct plan_candidate {
    char topology[24];
    int workers;                     // the question's, whatever the topology takes by itself
    const char *knob[PLAN_KNOBS];    // the value of each as it is typed, or NULL
    const char *is[PLAN_KNOBS];      // what the configuration has then: "none", "cpu" ..
    const char *folder[PLAN_KNOBS];  // to write to, or NULL: the caller has said it, or none is needed
    bool as_bytes;        // the demo's text has no tokens of this model: it is trained on byte by byte
    int64_t batch;        // sequences of a micro-batch
    int64_t tokens;       // of a step, of all workers
    double device_bytes;  // of a worker: the ledger, on a GPU with the allowance of memory_need.h
    double host_bytes;    // of all roles together, with their allowances
    double disk_bytes;    // of all workers
    double server_bytes;  // of the largest server; 0: there is none
    double wire_bytes;    // of a step: the larger way of the busiest rank
    struct offload_traffic offload;  // of a worker's step
    struct plan_step step;
    double tokens_per_s;
    double excess;  // the factor by which it exceeds the limit that it exceeds most; at most 1: it fits
};

struct plan {
    struct plan_candidate *all;  // those that fit, fastest first; owned
    int count;
    struct plan_candidate least;  // the one that exceeds its limits by the smallest factor, where none fits
    bool tried;                   // there was any
    bool as_bytes;                // of each candidate
    struct config *config;        // the question's own, for the head of a table; owned
    int64_t params;
};

// Sets the limits that nobody named: this machine's memory and disk, or none where the plan is for GPUs that are not here.
// 0, or -1 after logging: the options are wrong, or the model is not there.
int plan_search(struct plan_question *q, struct plan *out);
void plan_free(struct plan *p);

// The options of a candidate as they are typed behind those that were given (malloc'd).
char *plan_flags(const struct plan_candidate *c);
// The whole command, with what was given, limited to the device's memory that was asked for (malloc'd).
char *plan_line(const struct plan_question *q, const struct plan_candidate *c);

#endif
