// Builds ps-lite, beside which `starring bench ps --peer` measures the star, from its source folder: the folder's library
// and a program of the bench's own (pslite_peer.cc), in a directory of their own for temporary files.
//
// Blocking  bench_build, as long as the compiler takes.
#ifndef STARRING_PS_BENCH_BENCH_BUILD_H
#define STARRING_PS_BENCH_BENCH_BUILD_H

// The path of the built program (bench_build_remove), or NULL after logging with the exit status in *status: 2 where
// the folder is no source of ps-lite, 128 + signal where a signal ended it.
char *bench_build(const char *source, int *status);
// With the directory around it; nothing is done with NULL.
void bench_build_remove(char **program);

#endif
