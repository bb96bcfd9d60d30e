// `starring bench collective`: every primitive of collective.h over threads of this process, the ranks of
// mpirun or NCCL, timed and checked, in the columns of nccl-tests.
#ifndef STARRING_DECENTRAL_BENCH_BENCH_COLLECTIVE_H
#define STARRING_DECENTRAL_BENCH_BENCH_COLLECTIVE_H

// argv holds what follows "bench collective". Returns the program's exit status: 1 also when an element was
// wrong.
int bench_collective(int argc, char **argv);

#endif
