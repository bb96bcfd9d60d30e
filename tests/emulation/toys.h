// Small kernels with a known fault each, for the test of the emulation itself.
#ifndef STARRING_TESTS_EMULATION_TOYS_H
#define STARRING_TESTS_EMULATION_TOYS_H

#ifdef __cplusplus
extern "C" {
#endif

#define TOY_BLOCK          64  // threads
#define TOY_CLUSTER_BLOCKS 4

enum toy {
    TOY_REVERSE,                  // out = each block's numbers backwards, by way of shared memory
    TOY_REVERSE_WITHOUT_BARRIER,  // the same, without the barrier between writing and reading
    TOY_REVERSE_TWICE,            // two rounds, without the barrier between reading and the next writing
    TOY_REVERSE_DYNAMIC,          // the same as the first in dynamic shared memory
    TOY_BARRIER_FOR_SOME,         // a barrier that half of the threads reach; the others wait elsewhere
    TOY_LEAVES_EARLY,             // the last thread leaves before a barrier
    TOY_SHUFFLE_FOR_SOME,         // a shuffle that half of a warp reaches
    TOY_SHUFFLE_OF_SOME,          // a shuffle whose mask names half of a warp
    TOY_WARP_SUMS,                // out = sum over the warp + 1000 * lanes above 0, by three means
    TOY_RACE_FOR_ORDER,           // out[0] = sum of in, in the order in which blocks come
    TOY_READS_BEYOND,             // reads in[n]
    TOY_WRITES_BEYOND,            // writes out[n]
    TOY_SHARED_BEYOND,            // writes behind its shared memory
    TOY_CLUSTER,         // out = the sum of the first numbers of TOY_CLUSTER_BLOCKS blocks, a cluster
    TOY_CLUSTER_LEAVES,  // the same, but a block leaves while others may still read its memory
    TOY_CLUSTER_WITHOUT_BARRIER,  // the same, but blocks read before the others have written
    TOY_CLUSTER_TWICE,            // arrives twice without waiting
    TOY_TOO_MANY_THREADS,         // a block of 1025
    TOY_TOO_MUCH_SHARED           // 64 KiB of dynamic shared memory without asking for it
};

// Runs toy over n elements, a multiple of TOY_BLOCK; in(n), out(n). 0, or -1 with *why set.
int toy_run(enum toy toy, float *out, const float *in, int n, const char **why);

#ifdef __cplusplus
}
#endif

#endif
