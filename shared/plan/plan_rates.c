#include "shared/plan/plan_rates.h"

#include <string.h>

#define RATE(name, text, unit_is, on_cpu, on_gpu, of)                                    \
    {                                                                                    \
        .option = name, .unit = text, .per_unit = unit_is, .cpu = on_cpu, .gpu = on_gpu, \
        .member = offsetof(struct plan_rates, of)                                        \
    }

// A laptop's core or two and its loopback; an H100 at 40% of its 989 Tflop/s (the share that LLaMA 3's authors report,
// Grattafiori et al. 2024, section 3.3.2), a 400 Gbit/s link, HBM3, PCIe 5 and one NVMe drive.
const struct plan_rate plan_rates_list[] = {
    RATE("tflops", "Tflop/s", 1e12, 0.1, 400, flops),
    RATE("wire-rate", "GB/s", 1e9, 2, 50, wire),
    RATE("device-memory-rate", "GB/s", 1e9, 10, 3000, device_memory),
    RATE("host-memory-rate", "GB/s", 1e9, 10, 200, host_memory),
    RATE("host-link-rate", "GB/s", 1e9, 10, 50, host_link),
    RATE("disk-rate", "GB/s", 1e9, 1, 5, disk),
    {0},
};

double plan_rate_of(const struct plan_rates *rates, const struct plan_rate *r) {
    double x;
    memcpy(&x, (const char *)rates + r->member, sizeof x);
    return x;
}

void plan_rate_set(struct plan_rates *rates, const struct plan_rate *r, double per_second) {
    memcpy((char *)rates + r->member, &per_second, sizeof per_second);
}

static double larger(double a, double b) { return a > b ? a : b; }

struct plan_step plan_step_of(const struct plan_work *w, const struct plan_rates *r) {
    double memory = w->update_bytes / (w->states_on_host ? r->host_memory : r->device_memory);
    double link = w->host_link_bytes / r->host_link, disk = w->disk_bytes / r->disk;
    struct plan_step s = {.compute_s = w->flops / r->flops,
                          .again_s = w->again_flops / r->flops + w->again_bytes / r->device_memory,
                          .wire_s = w->wire_bytes / r->wire,
                          .update_s = larger(w->one_memory ? memory + link : larger(memory, link), disk)};
    double compute = s.compute_s + s.again_s, beside = larger(compute, s.wire_s);
    s.total_s = beside + s.update_s;
    if (s.update_s > beside)
        s.bound = disk >= link && disk >= memory ? "disk" : link >= memory ? "host link" : "memory";
    else
        s.bound = s.wire_s > compute ? "wire" : "compute";
    return s;
}
