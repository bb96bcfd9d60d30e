#include "kernels/cpu/scratch.h"

#include <pthread.h>
#include <stdlib.h>

#define SCRATCH_ALIGN ((size_t)256)

struct scratch {
    void *p;
    size_t bytes;
};

// A thread-specific key, not a thread_local pointer: only a key frees the memory when its thread ends.
static pthread_key_t scratch_key;
static pthread_once_t scratch_once = PTHREAD_ONCE_INIT;

static void scratch_end(void *arg) {
    struct scratch *s = arg;
    free(s->p);
    free(s);
}

static void scratch_init(void) {
    if (pthread_key_create(&scratch_key, scratch_end) != 0) abort();
}

void *thread_scratch(size_t bytes) {
    pthread_once(&scratch_once, scratch_init);
    struct scratch *s = pthread_getspecific(scratch_key);
    if (!s) {
        s = calloc(1, sizeof *s);
        if (!s || pthread_setspecific(scratch_key, s) != 0) {
            free(s);
            return NULL;
        }
    }
    if (s->bytes < bytes) {
        free(s->p);
        s->bytes = (bytes + SCRATCH_ALIGN - 1) / SCRATCH_ALIGN * SCRATCH_ALIGN;
        s->p = aligned_alloc(SCRATCH_ALIGN, s->bytes);
        if (!s->p) s->bytes = 0;
    }
    return s->p;
}
