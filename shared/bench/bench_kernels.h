// `starring bench kernels` and `starring bench adam`: each operation beside a copy (what moves bytes)
// or a large matrix product (what computes), timed in turn with it in the same run.
#ifndef STARRING_SHARED_BENCH_BENCH_KERNELS_H
#define STARRING_SHARED_BENCH_BENCH_KERNELS_H

// argv holds what follows "bench kernels" or "bench adam". They return the program's exit status.
int bench_kernels(int argc, char **argv);
int bench_adam(int argc, char **argv);

#endif
