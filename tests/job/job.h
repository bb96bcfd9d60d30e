// Helpers of the tests that run the built program: build/starring beside the test, or $STARRING.
//
// Every test works in a scratch directory of its own with a text (data.txt) and two models of odd sizes
// (llama.json, gpt2.json); job_close removes it.
#ifndef STARRING_TESTS_JOB_JOB_H
#define STARRING_TESTS_JOB_JOB_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct cJSON;

struct job_place {
    char dir[64];  // scratch directory
    char *program;
};

int job_open_place(struct job_place *p);  // 0, or -1
void job_close_place(struct job_place *p);
// The same as cmocka's setup and teardown: *state is a struct job_place of the test's own.
int job_setup(void **state);
int job_teardown(void **state);

// From now on the program finds the emulated CUDA device (tests/emulation/driver/driver.c) in place of a
// driver, so that --device cuda works: in as many devices, 0 for none. Its other settings are environment
// variables. false: the emulation has not been built (no CUDA headers, or the thread sanitizer): skip the
// test.
bool job_emulate(const struct job_place *p, int devices);

struct job_output {
    int status;       // exit status; 128 + signal when killed; -1: still ran at the deadline (and was killed)
    char *out, *err;  // what it printed
    double seconds;
};

// Runs the program with the words of the formatted text (split at spaces), in the scratch directory.
struct job_output job_run(const struct job_place *p, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
void job_output_free(struct job_output *o);

// The same in two halves: started, and waited for up to deadline_s.
pid_t job_start(const struct job_place *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
struct job_output job_wait(const struct job_place *p, pid_t pid, double deadline_s);

// Its output to "stdout" or "stderr" so far.
char *job_printed(const struct job_place *p, pid_t pid, const char *which);

// The same for a command that prints one JSON document; fails the test when it does not. The caller deletes it.
struct cJSON *job_json(const struct job_place *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
// An object's value under a key, as a finite number, as a text; each fails the test with the key's name.
const struct cJSON *job_item(const struct cJSON *o, const char *key);
double job_number(const struct cJSON *o, const char *key);
const char *job_text(const struct cJSON *o, const char *key);

// DIR/summary.json of a run in the scratch directory; fails the test when it is not there.
struct cJSON *job_summary(const struct job_place *p, const char *run);
// DIR/metrics.jsonl without what differs from run to run (seconds, memory): exact text of the rest.
char *job_curve(const struct job_place *p, const char *run);
// Number of whole lines so far, -1 when the last line is not whole.
int job_lines(const struct job_place *p, const char *run);

// Removes a run directory, so that what is found there later is new.
void job_remove(const struct job_place *p, const char *run);

// Processes whose command line holds `word` and this scratch directory's name, up to max; how many.
int job_processes(const struct job_place *p, const char *word, pid_t *pids, int max);

#endif
