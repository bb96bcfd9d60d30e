// Searches every way of training a model that the program supports and that fits in memory. It combines topologies,
// knobs (what is offloaded, what is recomputed) and micro-batches, takes the forecast of each (shared/predict/forecast.h),
// which is its --dry-run, and sorts them, fastest first.
//
// A candidate is the caller's options followed by a few configuration keys, so the printed command can be copied. A
// combination that the configuration refuses is no candidate. A knob that changes neither memory nor bytes is left out.
// All candidates have the settings of the command line (--topology, --batch, a knob's key). The settings of a file are
// only one of the candidates.
#ifndef STARRING_SHARED_PREDICT_PLAN_SEARCH_H
#define STARRING_SHARED_PREDICT_PLAN_SEARCH_H

#include "shared/config/cli.h"
#include "shared/config/config.h"
#include "shared/core/topology.h"
#include "shared/predict/forecast.h"
#include "shared/report/figure.h"

// ---------------------------------------------------------------- rates
// The predicted time of a step: bytes and FLOP divided by rates. This estimate only orders the plans; a run measures
// the speed.
//
//     compute   (FLOP of the model + recomputed FLOP) / flops
//     wire      the busiest rank's bytes, sent or received, / bytes per second; overlaps with compute
//     update    after the last gradient: the largest of
//                   the optimizer's bytes / the bandwidth of the memory that holds the states
//                   bytes between host and device / that link's bandwidth
//                   bytes read from and written to disk / the disk's bandwidth
//               which overlap, unit by unit. Where the device's memory is the host's, the copies and the update share
//               its bandwidth, so the first two are added
//     step      max(compute, wire) + update
struct plan_rates {
    double flops;          // FLOP per second that products reach
    double wire;           // bytes per second of a rank's link, each direction
    double device_memory;  // bytes per second
    double host_memory;    // bytes per second
    double host_link;      // between host and device, bytes per second
    double disk;           // bytes per second
};

// A rate as an option of the command and as a member of its document, with its default.
struct plan_rate {
    const char *option, *unit;  // "tflops"; "Tflop/s"
    double per_unit;            // value of one unit in plan_rates
    double cpu, gpu;            // defaults, in units
    size_t member;              // offset in struct plan_rates
};
extern const struct plan_rate plan_rates_list[];  // ends with a row without an option
double plan_rate_of(const struct plan_rates *rates, const struct plan_rate *r);  // per second
void plan_rate_set(struct plan_rates *rates, const struct plan_rate *r, double per_second);

struct plan_step {
    double compute_s, again_s, wire_s, update_s,
        total_s;        // again_s: recomputation, which compute_s does not include
    const char *bound;  // what takes longest: "compute", "wire", "memory", "host link" or "disk"
};

// ---------------------------------------------------------------- plans
#define PLAN_KNOBS 3  // rows of plan_knobs

// If the caller named no limits, a plan leaves so much of this machine's free memory and disk: the larger of the two.
#define PLAN_RESERVE_SHARE 0.05
#define PLAN_RESERVE_BYTES ((double)(1 << 30))

// A configuration key and its values, from the fastest to the one that saves most. NULL leaves the key out, or sets
// "none" where the caller's file would set something else.
struct plan_knob {
    const char *name, *path;
    const char *values[4];    // ends with ""
    const char *folder_path;  // the key of the folder that "nvme" writes to
};
extern const struct plan_knob plan_knobs[PLAN_KNOBS];

struct plan_question {
    const struct topology_table *topologies;
    const struct cli_args *args;  // the caller's options
    const char *topology;         // the only one to try; NULL: all
    double device_bytes;          // a worker's limit
    // Limits of all roles together. 0: not set, use this machine's free memory or disk less the reserve; INFINITY: no
    // limit.
    double host_bytes, disk_bytes;
    int64_t most_batch;  // largest micro-batch tried
    struct plan_rates rates;
};

struct plan_candidate {
    char topology[24];
    int workers;                     // the question's number, for every topology
    const char *knob[PLAN_KNOBS];    // the value of each as typed, or NULL
    const char *is[PLAN_KNOBS];      // the resulting setting: "none", "cpu" ..
    const char *folder[PLAN_KNOBS];  // folder to write to, or NULL: the caller named one, or none is needed
    bool as_bytes;                   // train on bytes, because the demo's text has no tokens of this model
    int64_t batch;                   // sequences of a micro-batch
    struct forecast_sums forecast;
    struct plan_step step;
    double tokens_per_s;
    double excess;  // the largest need divided by its limit; at most 1: it fits
};
#define PLAN_DOCUMENT "plan --json"
struct figure_rows plan_head_figures(void);  // of the document, which the command writes
struct figure_rows plan_figures(
    void);  // of struct plan_candidate: an element of "plans", a line of the table

struct plan {
    struct plan_candidate *all;  // the candidates that fit, fastest first; owned
    int count;
    struct plan_candidate least;  // if none fits: the one with the smallest excess
    bool tried;                   // at least one candidate was predicted
    bool as_bytes;                // of each candidate
    struct config *config;        // the question's own configuration, for the table's header; owned
    int64_t params, frozen_params;
};

// Sets the limits that the caller did not name: this machine's memory and disk, or none if the plan is for GPUs that
// this machine does not have. Returns 0, or -1 after logging: the options are wrong, or the model does not exist.
int plan_search(struct plan_question *q, struct plan *out);
void plan_free(struct plan *p);

// Returns a candidate's options, to be typed after the given ones (malloc'd).
char *plan_flags(const struct plan_candidate *c);
// Returns the whole command with the given options, limited to the requested device memory (malloc'd).
char *plan_line(const struct plan_question *q, const struct plan_candidate *c);

#endif
