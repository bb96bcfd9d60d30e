// The emulated driver: host memory that others map and register, used in the right way and in the wrong ones.
#include <sys/mman.h>

#include "tests/emulation/driver_cases.h"

#define PAGES_BYTES ((size_t)8192)

static char *new_pages(void) {
    void *p = mmap(NULL, PAGES_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(p != MAP_FAILED);
    return p;
}
static cudaError_t reg(void *p) { return cudaHostRegister(p, PAGES_BYTES, cudaHostRegisterPortable); }
static void end_unregistered(void) {
    char *p = new_pages();
    reg(p);
    cudaHostUnregister(p);
}
static void end_registered(void) { reg(new_pages()); }
static void end_unmapped(void) {
    char *p = new_pages();
    reg(p);
    munmap(p, PAGES_BYTES);
}

static const struct {
    const char *name;
    void (*run)(void);
} endings[] = {{"end unregistered", end_unregistered},
               {"end registered", end_registered},
               {"end unmapped", end_unmapped}};

// It must end as usual and say the text; "": nothing at all.
static void assert_ends(const char *text, const char *fault) {
    char said[8192];
    int status = run_fault(fault, said, sizeof said);
    if (status != 0 || !strstr(said, text) || (!*text && *said)) fail_msg("status %x: %s", status, said);
}

static void registered_memory_is_pinned(void **state) {
    (void)state;
    sem_t gate;
    sem_init(&gate, 0, 0);
    cudaStream_t s = new_stream();
    char *pages = new_pages(), *device = new_memory(1), *alloc = new_pinned(N), *gone = new_pages();
    ok(reg(pages));
    pages[0] = 1;
    assert_int_equal(submit(s, &(struct kernel){.gate = &gate}), 0);
    ok(cudaMemcpyAsync(device, pages, 1, cudaMemcpyDefault, s));
    pages[0] = 2;  // read when the stream comes to it
    sem_post(&gate);
    ok(cudaStreamSynchronize(s));
    assert_int_equal(device_byte(device), 2);
    int kept = quiet_begin();
    assert_int_equal(reg(pages), cudaErrorHostMemoryAlreadyRegistered);
    assert_int_equal(reg(pages + 4096), cudaErrorHostMemoryAlreadyRegistered);
    assert_int_equal(reg(alloc), cudaErrorHostMemoryAlreadyRegistered);
    assert_int_equal(cudaFreeHost(pages), cudaErrorInvalidValue);
    assert_int_equal(cudaHostUnregister(pages + 4096), cudaErrorHostMemoryNotRegistered);
    assert_int_equal(cudaHostUnregister(alloc), cudaErrorHostMemoryNotRegistered);
    assert_int_equal(munmap(gone, PAGES_BYTES), 0);
    assert_int_equal(reg(gone), cudaErrorInvalidValue);
    ok(cudaHostUnregister(pages));
    assert_int_equal(cudaHostUnregister(pages), cudaErrorHostMemoryNotRegistered);
    ok(reg(pages));
    munmap(pages, PAGES_BYTES);
    assert_int_equal(cudaHostUnregister(pages), cudaErrorInvalidValue);
    quiet_end(kept);
    cudaGetLastError();
    ok(cudaFreeHost(alloc));
    ok(cudaFree(device));
    ok(cudaStreamDestroy(s));
}

static void ending_while_registered_is_noted(void **state) {
    (void)state;
    assert_ends("", "end unregistered");
    assert_ends("8192 bytes of host memory are still registered at the end\n", "end registered");
    assert_ends("still registered at the end, and have been unmapped\n", "end unmapped");
}

int main(int argc, char **argv) {
    for (size_t i = 0; argc > 1 && i < sizeof endings / sizeof *endings; i++)
        if (strcmp(argv[1], endings[i].name) == 0) endings[i].run();
    if (argc > 1) return 0;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(registered_memory_is_pinned),
        cmocka_unit_test(ending_while_registered_is_noted),
    };
    return cmocka_run_group_tests_name("emulation: registered memory", tests, NULL, NULL);
}
