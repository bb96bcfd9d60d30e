// Shared by the targets of `make fuzz`. A target is one file with one function over bytes:
//
//     FUZZ_TARGET(wire) {                      // data, size
//         struct fuzz_bytes in = {data, size};
//         ..
//         FUZZ_CHECK(good, "what is wrong");   // a finding, as a sanitizer's report is one
//     }
//
// Built twice: with clang's libFuzzer, a program for each (make fuzz), and with the tests' compiler, all in one that runs
// each file of corpus/TARGET once (test_fuzz_replay). A target keeps nothing from one input for the next but files that
// it writes anew, and reads neither the clock nor a random number, so that an input always does the same.
#ifndef STARRING_TESTS_FUZZ_FUZZ_H
#define STARRING_TESTS_FUZZ_FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef void fuzz_run(const uint8_t *data, size_t size);

#ifdef FUZZING
#define FUZZ_TARGET(name)                                          \
    static void fuzz_one(const uint8_t *data, size_t size);        \
    int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);  \
    int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) { \
        fuzz_begin();                                              \
        fuzz_one(data, size);                                      \
        return 0;                                                  \
    }                                                              \
    static void fuzz_one(const uint8_t *data, size_t size)
#else
#define FUZZ_TARGET(name)                                                                    \
    static void fuzz_one(const uint8_t *data, size_t size);                                  \
    static struct fuzz_target fuzz_this = {#name, fuzz_one, NULL};                           \
    static __attribute__((constructor)) void fuzz_list_this(void) { fuzz_list(&fuzz_this); } \
    static void fuzz_one(const uint8_t *data, size_t size)
#endif

struct fuzz_target {
    const char *name;
    fuzz_run *run;
    const struct fuzz_target *next;
};
void fuzz_list(struct fuzz_target *t);
const struct fuzz_target *fuzz_targets(void);  // those that are linked in, by name

// Before each input: what the program says stays unsaid.
void fuzz_begin(void);

// A finding: the text, then abort().
_Noreturn void fuzz_found(const char *file, int line, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
#define FUZZ_CHECK(good, ...)                                     \
    do {                                                          \
        if (!(good)) fuzz_found(__FILE__, __LINE__, __VA_ARGS__); \
    } while (0)

// ---- bytes as choices. Zeros follow after its end.
struct fuzz_bytes {
    const uint8_t *p;
    size_t left;
};
uint8_t fuzz_u8(struct fuzz_bytes *b);
uint64_t fuzz_word(struct fuzz_bytes *b, int bytes);    // little-endian, 1 to 8
uint64_t fuzz_below(struct fuzz_bytes *b, uint64_t n);  // 0 .. n-1, of as few bytes as n needs
// One of the numbers at which things change, or any: 0, 1, powers of two and their neighbours, the type's ends.
int64_t fuzz_number(struct fuzz_bytes *b);
// The bytes up to the next zero (or the end), as a text; behind it, at, the rest begins.
char *fuzz_text(struct fuzz_bytes *b);  // malloc'd

// ---- files, in memory where the machine has /dev/shm. The directory goes when the process ends.
const char *fuzz_dir(void);
char *fuzz_path(const char *name);  // malloc'd
// The file in fuzz_dir holds these bytes. It stays open: nobody may replace it.
void fuzz_put(const char *name, const void *bytes, size_t n);
void fuzz_remove(const char *name);
void fuzz_make_dir(const char *name);

size_t fuzz_allocated(void);  // bytes of the heap that are in use

#endif
