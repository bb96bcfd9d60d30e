// How often the host has waited for a device, and copied from memory that is not page-locked, for which
// a GPU makes the host wait beyond 64 KB (CUDA's runtime documentation, "API synchronization behavior"; the
// copies of the tests are small, so all of them count). Threads that launch kernels are those of streams:
// their waits, for the events of their own clock, do not delay a host. EMULATED_CUDA_COUNTS names a file to which
// the process appends a line at its end.
#include <stdio.h>
#include <stdlib.h>

#include "tests/emulation/driver/driver_impl.h"

static atomic_ullong waits, pageable;

static _Thread_local bool launches;

void count_launch(void) { launches = true; }
void count_wait(void) {
    if (!launches) atomic_fetch_add(&waits, 1);
}
void count_pageable(void) { atomic_fetch_add(&pageable, 1); }

__attribute__((destructor)) static void leave(void) {
    const char *name = getenv("EMULATED_CUDA_COUNTS");
    FILE *f = name && atomic_load(&waits) ? fopen(name, "a") : NULL;
    if (!f) return;
    fprintf(f, "waits %llu pageable %llu\n", (unsigned long long)atomic_load(&waits),
            (unsigned long long)atomic_load(&pageable));
    fclose(f);
}
