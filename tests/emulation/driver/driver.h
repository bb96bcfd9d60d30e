// The emulated driver, as the libraries of an emulated process see it: the kernels and cuBLASLt in
// libstarring_cuda.so, and libnccl.so.2. libcuda.so.1 has it (driver_*.c), next to the functions of CUDA's
// runtime. Test programs that run kernels without a driver link now.cc instead, which carries out everything
// at once.
//
// Threads   Any. Submitted work runs on a thread of its stream.
#ifndef STARRING_TESTS_EMULATION_DRIVER_H
#define STARRING_TESTS_EMULATION_DRIVER_H

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

struct CUstream_st;

struct emu_work {
    const char *name;
    int (*run)(void *arg, const char **why);  // 0, or the cudaError_t that the device then keeps, with a text
    void (*drop)(void *arg);                  // frees arg; called once, whether it ran or not
    void *arg;
    const void *words;  // arguments of a kernel: no word of them may point to what its device does not reach
    size_t words_bytes;
    bool waits;          // run may wait for other streams: it opens device memory itself, when it touches it
    const void *kernel;  // which code runs: it is loaded at its first launch; NULL: always there
};

// Enqueues; takes arg. 0, or the cudaError_t of the refusal.
int emu_submit(struct CUstream_st *s, const struct emu_work *work);
// Loads code on a device, unless it is there; device -1: the calling thread's.
void emu_load(int device, const void *kernel, const char *name);
// The device is used by a communicator that is complete (1), or no longer (-1). Meanwhile nothing may be
// allocated, created or loaded on it: a GPU may then wait for all it is doing, and so for a collective that
// waits for a peer who is about to do likewise. Work that does so all the same is noted on stderr (the first
// ones) and counted. shared: several ranks compute on the device; what one of them frees is not looked at.
void emu_device_seal(int device, int change, bool shared);
unsigned emu_late(void);
// Says on stderr what was wrong with a call that is about to be refused.
void emu_note(const char *text);
// Whether the work of a stream's device reaches all of [p, p + bytes); says what is wrong when not.
bool emu_reaches(struct CUstream_st *s, const void *p, size_t bytes, const char *what);
int emu_device_of(struct CUstream_st *s);

// Between these two the calling thread may touch device memory.
void emu_memory_open(void);
void emu_memory_close(void);

#ifdef __cplusplus
}
#endif

#endif
