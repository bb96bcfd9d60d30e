// `starring bench step`: one process's training step beside a large matrix product of the same run.
#ifndef STARRING_SHARED_BENCH_BENCH_STEP_H
#define STARRING_SHARED_BENCH_BENCH_STEP_H

struct topology_table;

// argv holds what follows "bench step". Returns the program's exit status.
int bench_step(const struct topology_table *topologies, int argc, char **argv);

#endif
