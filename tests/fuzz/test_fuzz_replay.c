// Runs every file of tests/fuzz/corpus/TARGET through its target, without a fuzzer. `test_fuzz_replay TARGET FILE..`
// runs these files alone.
#include <dirent.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "shared/core/error.h"
#include "tests/fuzz/fuzz.h"

#define CORPUS      "tests/fuzz/corpus"
#define TARGETS_MAX 64

static char current[1024];  // the file that runs

// A crash leaves the number of the input behind.
static void crashed(int signal_number) {
    static const char before[] = "test_fuzz_replay: died on ";
    ssize_t n = write(2, before, sizeof before - 1);
    n += write(2, current, strlen(current));
    n += write(2, "\n", 1);
    signal(signal_number, SIG_DFL);
    raise(signal_number);
    (void)n;
}

static void run_file(const struct fuzz_target *t, const char *path) {
    FILE *f = fopen(path, "rb");
    snprintf(current, sizeof current, "%s", path);
    if (!f) fail_msg("%s cannot be read", path);
    char *bytes = NULL;
    size_t n = 0, got;
    do {
        bytes = xrealloc(bytes, n + 65536);
        got = fread(bytes + n, 1, 65536, f);
        n += got;
    } while (got > 0);
    fclose(f);
    // Copied to memory of its own size: a reader that goes beyond it is detected.
    uint8_t *input = xcalloc(n, 1);
    memcpy(input, bytes, n);
    free(bytes);
    fuzz_begin();
    t->run(input, n);
    free(input);
}

static void run_target(void **state) {
    const struct fuzz_target *t = *state;
    char dir[256];
    struct dirent **names = NULL;
    snprintf(dir, sizeof dir, CORPUS "/%s", t->name);
    int n = scandir(dir, &names, NULL, alphasort), ran = 0;
    for (int i = 0; i < n; i++) {
        char *path = xasprintf("%s/%s", dir, names[i]->d_name);
        if (names[i]->d_name[0] != '.') {
            run_file(t, path);
            ran++;
        }
        free(path);
        free(names[i]);
    }
    free(names);
    if (!ran) fail_msg("%s holds no input", dir);
}

int main(int argc, char **argv) {
    struct CMUnitTest tests[TARGETS_MAX];
    int count = 0;
    for (int s = 0; s < 5; s++) signal((int[]){SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL}[s], crashed);
    for (const struct fuzz_target *t = fuzz_targets(); t && count < TARGETS_MAX; t = t->next) {
        if (argc > 2 && strcmp(t->name, argv[1]) == 0) {
            for (int i = 2; i < argc; i++) run_file(t, argv[i]);
            return 0;
        }
        tests[count++] =
            (struct CMUnitTest){.name = t->name, .test_func = run_target, .initial_state = (void *)t};
    }
    if (argc > 1) {
        fprintf(stderr, "usage: test_fuzz_replay [TARGET FILE..]\n");
        return 2;
    }
    return _cmocka_run_group_tests("fuzz", tests, (size_t)count, NULL, NULL);
}
