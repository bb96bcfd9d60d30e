// Opens the object that contains all CUDA code, so that the program itself needs neither CUDA nor a driver.
//
// Where    STARRING_CUDA_SO if set and not empty. Else the program's folder, its lib folder, or the lib folder
//          next to the program's folder (bin/starring, lib/... and lib/starring/...).
// Order    The object's file, then the driver, then the object. On a machine without a driver the error names
//          the driver, not a missing library of the object.
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/backend_impl.h"
#include "kernels/cuda_so.h"

#define PATH_BYTES 4096
#define WHY_BYTES  1024

// As dlerror: one text per thread, valid until that thread's next failure.
static char *why_text(void) {
    static _Thread_local char text[WHY_BYTES];
    return text;
}

// Returns 0 with the object's path, or -1 with the text in *why.
static int find_object(char *path, const char **why) {
    static const char *const places[] = {"", "lib/", "../lib/", "../lib/starring/"};
    const char *given = getenv("STARRING_CUDA_SO");
    char folder[PATH_BYTES];
    char *text = why_text();
    *why = text;
    if (given && *given) {
        snprintf(path, PATH_BYTES, "%s", given);
        if (access(path, R_OK) == 0) return 0;
        snprintf(text, WHY_BYTES,
                 "STARRING_CUDA_SO names %.600s, which cannot be read: build it with `make` where nvcc is "
                 "installed, or unset the variable",
                 given);
        return -1;
    }
    // The folder of the program with its '/', or "" if it is unknown.
    ssize_t n = readlink("/proc/self/exe", folder, sizeof folder - 64);
    folder[n > 0 ? n : 0] = 0;
    char *slash = strrchr(folder, '/');
    *(slash ? slash + 1 : folder) = 0;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        snprintf(path, PATH_BYTES, "%.4000s%s%s", folder, places[i], CUDA_SO_FILE);
        if (access(path, R_OK) == 0) return 0;
    }
    snprintf(text, WHY_BYTES,
             "this build has no CUDA: there is no " CUDA_SO_FILE
             " in %.400s or its lib folder; run `make` where nvcc is installed (without CUDA=0), name the "
             "file in STARRING_CUDA_SO, or use --device cpu",
             folder);
    return -1;
}

// Whether the file is as long as its program headers claim. The loader maps a shorter file without checking,
// and the process dies at the first missing page.
static bool is_whole(int fd) {
    struct stat st;
    Elf64_Ehdr head;
    Elf64_Phdr part;
    ssize_t n = pread(fd, &head, sizeof head, 0);
    // If the file is not an ELF object at all, the loader reports it.
    if (n < SELFMAG || memcmp(head.e_ident, ELFMAG, SELFMAG) != 0) return true;
    if (n < (ssize_t)sizeof head || fstat(fd, &st) != 0) return false;
    for (int i = 0; i < head.e_phnum; i++) {
        off_t at = (off_t)(head.e_phoff + (Elf64_Off)i * sizeof part);
        if (pread(fd, &part, sizeof part, at) != (ssize_t)sizeof part) return false;
        if (part.p_type == PT_LOAD && part.p_offset + part.p_filesz > (Elf64_Off)st.st_size) return false;
    }
    return true;
}

// Sets CUDA_DEVICE_MAX_CONNECTIONS, so that as many as possible of our and NCCL's streams have a hardware queue of their
// own: two streams that share a queue run one after the other. CUDA reads the variable when it starts. A value that the
// user has set is kept.
static void ask_for_queues(void) { setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0); }

const struct cuda_so *cuda_so_open(const char **why) {
    static pthread_once_t asked = PTHREAD_ONCE_INIT;
    pthread_once(&asked, ask_for_queues);
    char path[PATH_BYTES];
    char *text = why_text();
    const char *error;
    *why = text;
    // 1. The object's file must be complete.
    if (find_object(path, why) != 0) return NULL;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    bool whole = fd >= 0 && is_whole(fd);
    if (fd >= 0) close(fd);
    if (!whole) {
        snprintf(text, WHY_BYTES,
                 "%.600s is cut short: delete it and run `make` again, or copy it once more from where it is "
                 "whole",
                 path);
        return NULL;
    }
    // 2. The driver stays open, because the CUDA runtime needs it next.
    if (!dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL)) {
        error = dlerror();
        snprintf(text, WHY_BYTES,
                 "the NVIDIA driver is missing on this machine (%.300s); install it, in a container start it "
                 "with the GPUs (docker run --gpus all), or use --device cpu",
                 error ? error : "libcuda.so.1");
        return NULL;
    }
    // 3. The object must be of this build.
    void *object = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!object) {
        error = dlerror();
        snprintf(text, WHY_BYTES,
                 "%.400s cannot be loaded: %.400s; where that is CUDA's cuBLASLt, install it (NVIDIA's "
                 "packages libcublas-*, pip's nvidia-cublas) and name its folder in LD_LIBRARY_PATH",
                 path, error ? error : "no reason given");
        return NULL;
    }
    const struct cuda_so *so = dlsym(object, CUDA_SO_SYMBOL);
    if (so && so->abi == CUDA_SO_ABI && so->device_bytes == sizeof(struct device)) return so;
    snprintf(text, WHY_BYTES, "%.600s belongs to another build of starring; run `make` again", path);
    dlclose(object);
    return NULL;
}

const struct backend *cuda_backend_find(const char **why) {
    const struct cuda_so *so = cuda_so_open(why);
    if (!so) return NULL;
    if (so->probe(why_text(), WHY_BYTES) == 0) return so->backend;
    *why = why_text();
    return NULL;
}
