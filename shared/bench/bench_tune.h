// `starring bench tune`: which of cuBLASLt's algorithms each matrix product of a model's training step takes
// on this GPU, by measurement; a table of them for later runs.
#ifndef STARRING_SHARED_BENCH_BENCH_TUNE_H
#define STARRING_SHARED_BENCH_BENCH_TUNE_H

// argv holds what follows "bench tune". Returns the program's exit status.
int bench_tune(int argc, char **argv);

#endif
