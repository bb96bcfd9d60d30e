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
//
// Pure.
#ifndef STARRING_SHARED_PLAN_PLAN_RATES_H
#define STARRING_SHARED_PLAN_PLAN_RATES_H

#include <stdbool.h>
#include <stddef.h>

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

// The work of one rank in a step.
struct plan_work {
    double flops, again_flops;  // of the model; computed again
    double again_bytes;         // read and written by norms and activation functions that are computed again
    double wire_bytes;          // the larger of sent and received, of the busiest rank
    double update_bytes;        // read and written by the update where the states are
    double host_link_bytes;     // the larger way
    double disk_bytes;          // read and written
    bool states_on_host;        // the update runs in the host's memory
    bool one_memory;            // the device's is the host's
};

struct plan_step {
    double compute_s, again_s, wire_s, update_s, total_s;  // compute_s without again_s
    const char *bound;  // what the step waits for most: "compute", "wire", "memory", "host link" or "disk"
};
struct plan_step plan_step_of(const struct plan_work *w, const struct plan_rates *r);

#endif
