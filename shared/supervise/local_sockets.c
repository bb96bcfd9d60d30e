#include "shared/supervise/local_sockets.h"

#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "shared/core/error.h"

// The library, as the linker has left it (Makefile).
__asm__(
    ".section .rodata\n"
    "local_sockets_begin: .incbin \"" LOCAL_SOCKETS_SO
    "\"\n"
    "local_sockets_end:\n"
    ".previous\n");
extern const char local_sockets_begin[], local_sockets_end[];

int local_sockets_preload(void) {
    const char *before = getenv("LD_PRELOAD");
    size_t size = (uintptr_t)local_sockets_end - (uintptr_t)local_sockets_begin;
    int fd = memfd_create("starring-sockets", 0);  // stays open: ranks find it at mpirun
    if (fd < 0) return -1;
    if (write(fd, local_sockets_begin, size) != (ssize_t)size) return close(fd), -1;
    char *path = xasprintf("/proc/%d/fd/%d%s%s", (int)getpid(), fd, before ? ":" : "", before ? before : "");
    setenv("STARRING_PRELOAD_BEFORE", before ? before : "", 1);
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
    setenv("STARRING_PRELOAD_MPIRUN_ALONE", "1", 1);
#endif
    setenv("LD_PRELOAD", path, 1);
    free(path);
    return 0;
}
