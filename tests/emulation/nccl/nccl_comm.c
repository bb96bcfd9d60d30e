// The emulated NCCL's version, and a communicator's errors.
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/emulation/nccl/nccl_impl.h"

int nccl_version(void) {
    const char *named = getenv("EMULATED_NCCL_VERSION");
    return named && *named ? atoi(named) : NCCL_VERSION_CODE;
}

void *must(void *p) {
    if (!p) abort();
    return p;
}

// With the lock held. The first text stays.
ncclResult_t comm_refuse(struct ncclComm *c, ncclResult_t e, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    if (!*c->text) vsnprintf(c->text, sizeof c->text, fmt, ap);
    va_end(ap);
    emu_note(c->text);
    return e;
}
