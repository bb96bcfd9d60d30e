// For tests that open the emulated CUDA device (tests/emulation/driver/driver.c) in their own process: its
// folder must be named in the environment before the process begins, so the test starts itself again.
#ifndef STARRING_TESTS_EMULATED_H
#define STARRING_TESTS_EMULATED_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// Names the folder beside the running program; -1 when it has not been built.
static inline int emulated_environment(void) {
    char folder[900], object[1000];
    ssize_t n = readlink("/proc/self/exe", folder, sizeof folder - 16);
    if (n < 0) return -1;
    folder[n] = 0;
    char *slash = strrchr(folder, '/');
    snprintf(slash, 16, "/emulated");
    snprintf(object, sizeof object, "%s/libstarring_cuda.so", folder);
    if (access(object, R_OK) != 0) return -1;
    setenv("STARRING_CUDA_SO", object, 1);
    setenv("LD_LIBRARY_PATH", folder, 1);
    return 0;
}

// Returns in a process that has the environment: 0, or -1 when there is no emulation.
static inline int emulated_begin(char **argv, const char *devices, const char *delay_us) {
    if (getenv("STARRING_TEST_EMULATED")) return 0;
    if (emulated_environment() != 0) return -1;
    setenv("STARRING_TEST_EMULATED", "1", 1);
    setenv("EMULATED_CUDA_DEVICES", devices, 1);
    setenv("EMULATED_CUDA_DELAY_US", delay_us, 0);
    execv("/proc/self/exe", argv);
    return -1;
}

#endif
