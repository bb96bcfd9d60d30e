// `starring bench ps`: how fast the star moves and applies gradients and weights, beside what the machine can do.
#ifndef STARRING_PS_BENCH_BENCH_PS_H
#define STARRING_PS_BENCH_BENCH_PS_H

struct topology_table;

// argv holds what follows "bench ps". Returns the program's exit status.
int bench_ps(const struct topology_table *t, int argc, char **argv);

#endif
