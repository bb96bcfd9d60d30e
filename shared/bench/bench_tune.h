// `starring bench tune`: which of cuBLASLt's algorithms each matrix product of a model's training step takes
// on this GPU, by measurement; a table of them for later runs.
#ifndef STARRING_SHARED_BENCH_BENCH_TUNE_H
#define STARRING_SHARED_BENCH_BENCH_TUNE_H

struct topology_table;

// argv holds what follows "bench tune". Returns the program's exit status.
int bench_tune(const struct topology_table *topologies, int argc, char **argv);

#endif
