// The ring's benches: its primitives (`bench collective`) and a rank's memory in each stage (`bench zero`).
#ifndef STARRING_DECENTRAL_BENCH_BENCH_RING_H
#define STARRING_DECENTRAL_BENCH_BENCH_RING_H

#include "shared/bench/bench.h"

extern const struct bench_program bench_collective, bench_zero;

#endif
