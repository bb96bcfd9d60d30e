// Computes multiply-adds until the time is over.
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/team.h"
#include "kernels/spans.h"

#define CHAINS 64   // independent chains: enough to hide the latency for every vector length
#define STEPS  512  // between two readings of the clock: some microseconds

// noipa: never inlined or analysed, so that the compiler can neither compute nor drop the results.
static __attribute__((noipa)) void multiply_add(float x[CHAINS]) {
    for (int s = 0; s < STEPS; s++)
        for (int i = 0; i < CHAINS; i++) x[i] = x[i] * 0.5f + 1.0f;
}

static void busy_part(void *arg, int index, int count) {
    const int64_t *until = arg;
    float x[CHAINS] = {(float)index};
    (void)count;
    while (now_ns() < *until) multiply_add(x);
}

const char *cpu_busy(int threads, const struct busy_args *a) {
    int64_t now = now_ns(), since = a->clock[0] ? now - a->clock[0] : 0;
    a->clock[1] = now + a->ns + (int64_t)(a->factor * (double)since);
    if (a->clock[1] > now) team_run(threads, busy_part, &a->clock[1]);
    a->clock[0] = now_ns();
    return NULL;
}
