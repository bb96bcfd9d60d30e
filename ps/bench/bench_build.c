#include "ps/bench/bench_build.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/command/cli.h"
#include "shared/core/error.h"
#include "shared/launch/launch.h"
#include "shared/launch/stop.h"

#define GRACE_S 2.0

// The program's text (Makefile).
__asm__(
    ".section .rodata\n"
    "pslite_peer_begin: .incbin \"ps/bench/pslite_peer.cc\"\n"
    "pslite_peer_end:\n"
    ".previous\n");
extern const char pslite_peer_begin[], pslite_peer_end[];

// $1: the source folder, $2: where to build.
static const char script[] =
    "protoc --cpp_out=\"$2\" --proto_path=\"$1/src\" \"$1/src/meta.proto\" && "
    "c++ -std=c++17 -O3 -march=native -w -I\"$1/include\" -I\"$2\" -o \"$2/peer\" \"$2/peer.cc\" \"$2/meta.pb.cc\" "
    "\"$1/src/customer.cc\" \"$1/src/postoffice.cc\" \"$1/src/van.cc\" -lprotobuf-lite -lzmq -pthread";

static char *write_source(void) {
    const char *tmp = getenv("TMPDIR");
    char *dir = xasprintf("%s/starring-peer-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    if (!mkdtemp(dir)) {
        fail("%s: %s", dir, strerror(errno));
        free(dir);
        return NULL;
    }
    char *program = xasprintf("%s/peer", dir), *path = xasprintf("%s.cc", program);
    size_t size = (uintptr_t)pslite_peer_end - (uintptr_t)pslite_peer_begin;
    FILE *f = fopen(path, "w");
    size_t written = f ? fwrite(pslite_peer_begin, 1, size, f) : 0;
    if (!f || fclose(f) != 0 || written != size) {
        fail("%s: %s", path, strerror(errno));
        bench_build_remove(&program);
    }
    free(path);
    free(dir);
    return program;
}

void bench_build_remove(char **program) {
    static const char *const files[] = {"peer", "peer.cc", "meta.pb.cc", "meta.pb.h"};
    if (!*program) return;
    *strrchr(*program, '/') = 0;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char *path = xasprintf("%s/%s", *program, files[i]);
        unlink(path);
        free(path);
    }
    rmdir(*program);
    free(*program);
    *program = NULL;
}

// The compiler's exit status, or 128 + signal.
static int compile(const char *source, const char *program) {
    struct launch_options o = {.grace_s = GRACE_S};
    char *dir = xasprintf("%.*s", (int)(strrchr(program, '/') - program), program);
    char *const argv[] = {"sh", "-c", (char *)script, "sh", (char *)source, dir, NULL};
    struct launch_child child = {.role = "compiler", .rank = -1, .program = "/bin/sh", .argv = argv};
    stop_supervise();
    struct launcher *l = launcher_create(&o);
    int status = launcher_start(l, &child) ? EXIT_RUN_FAILED : launcher_wait(l);
    launcher_destroy(&l);
    free(dir);
    return status;
}

char *bench_build(const char *source, int *status) {
    char *wanted = xasprintf("%s/src/meta.proto", source), *program = NULL;
    *status = access(wanted, R_OK) ? EXIT_USAGE : EXIT_RUN_FAILED;
    if (*status == EXIT_USAGE)
        fail("--peer %s: %s: %s; give the source folder of ps-lite (github.com/dmlc/ps-lite)", source, wanted,
             strerror(errno));
    else
        program = write_source();
    free(wanted);
    if (!program || !(*status = compile(source, program))) return program;
    if (*status < 128)
        fail(
            "--peer %s: ps-lite could not be built from there; beside its source it takes c++, protoc and the headers "
            "of protobuf and libzmq (apt-get install g++ protobuf-compiler libprotobuf-dev libzmq3-dev)",
            source);
    bench_build_remove(&program);
    return NULL;
}
