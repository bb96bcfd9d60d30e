// The driver's part for test programs that have none: there is no stream, everything happens at once on the
// calling thread, and the text of a failure is the last one said.
#include <cuda_runtime.h>
#include <stdio.h>

#include "tests/emulation/driver/driver.h"

static thread_local char said[256];

extern "C" void emu_note(const char *text) { snprintf(said, sizeof said, "%s", text); }

extern "C" int emu_submit(struct CUstream_st *s, const struct emu_work *work) {
    const char *why = "";
    if (s) abort();
    int e = work->run(work->arg, &why);
    if (e != 0) emu_note(why);
    work->drop(work->arg);
    return e;
}

extern "C" void emu_load(int, const void *, const char *) {}

extern "C" const char *cudaGetErrorString(cudaError_t e) { return e == cudaSuccess ? "no error" : said; }

extern "C" cudaError_t cudaMemsetAsync(void *p, int value, size_t bytes, cudaStream_t) {
    memset(p, value, bytes);
    return cudaSuccess;
}

extern "C" cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind,
                                       cudaStream_t) {
    memmove(to, from, bytes);
    return cudaSuccess;
}
