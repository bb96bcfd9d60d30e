// `starring bench ps`: how fast the star moves gradients and weights.
#ifndef STARRING_PS_BENCH_BENCH_PS_H
#define STARRING_PS_BENCH_BENCH_PS_H

#include "shared/bench/bench.h"

extern const struct bench_program bench_ps;

#endif
