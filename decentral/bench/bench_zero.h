// `starring bench zero`: what the ranks of a ring hold in each of ZeRO's stages, counted while they train a model that
// has nothing but units of one matrix and one bias.
#ifndef STARRING_DECENTRAL_BENCH_BENCH_ZERO_H
#define STARRING_DECENTRAL_BENCH_BENCH_ZERO_H

// argv holds what follows "bench zero". Returns the program's exit status: 1 also when what was counted is not what was
// predicted, or a gradient's norm not what was put in.
int bench_zero(int argc, char **argv);

#endif
