// What computes, of the operations that `starring bench kernels` times.
#ifndef STARRING_SHARED_BENCH_BENCH_PRODUCTS_H
#define STARRING_SHARED_BENCH_BENCH_PRODUCTS_H

#include "shared/bench/bench_table.h"

void bench_add_attention(struct bench_table *t);
void bench_add_products(struct bench_table *t);  // the yardstick, linear layers, the head

#endif
