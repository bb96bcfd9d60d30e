#include "tests/job/job.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cjson/cJSON.h>
#include <cmocka.h>

#include "shared/core/disk.h"
#include "shared/core/error.h"
#include "tests/fixture.h"

#define WORDS_MAX      80
#define RUN_DEADLINE_S 240.0  // a hang

// Sizes that divide by nothing; LLaMA with grouped queries, q/k/v bias (Qwen) and an untied head.
static const char llama_json[] =
    "{\"model_type\":\"qwen2\",\"vocab_size\":259,\"hidden_size\":24,\"num_hidden_layers\":2,"
    "\"num_attention_heads\":3,\"num_key_value_heads\":1,\"intermediate_size\":37,\"max_position_"
    "embeddings\":64,"
    "\"rms_norm_eps\":1e-6,\"rope_theta\":10000.0,\"tie_word_embeddings\":false,\"hidden_act\":\"silu\"}";
static const char gpt2_json[] =
    "{\"model_type\":\"gpt2\",\"vocab_size\":257,\"n_embd\":20,\"n_layer\":3,\"n_head\":5,\"n_positions\":33,"
    "\"layer_norm_epsilon\":1e-5,\"activation_function\":\"gelu_new\"}";

static char *own_program(void) {
    const char *named = getenv("STARRING");
    if (named) return realpath(named, NULL);
    char path[512];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    if (n < 0) return NULL;
    path[n] = 0;
    for (int up = 0; up < 2; up++) *strrchr(path, '/') = 0;
    return xasprintf("%s/starring", path);
}

// A few thousand words from a small vocabulary: something a model can learn, the same everywhere.
static char *words_text(void) {
    static const char *const words[] = {"star",    "ring",      "server", "worker", "gather",
                                        "scatter", "the",       "a",      "pushes", "pulls",
                                        "weights", "gradients", "and",    "waits",  "for"};
    char *text = xcalloc(40001, 1);
    size_t length = 0;
    uint32_t x = 12345;
    while (length < 39900) {
        x = x * 1664525u + 1013904223u;
        length += (size_t)sprintf(text + length, "%s%s", words[(x >> 16) % 15], (x >> 8) % 11 ? " " : ".\n");
    }
    return text;
}

int job_open_place(struct job_place *p) {
    p->program = own_program();
    if (!p->program || access(p->program, X_OK) || fixture_folder(p->dir, "job")) {
        fprintf(stderr, "no program %s\n", p->program ? p->program : "");
        return -1;
    }
    char *text = words_text();
    int rc = run_file_write(p->dir, "data.txt", text);
    free(text);
    return rc || run_file_write(p->dir, "llama.json", llama_json) ||
           run_file_write(p->dir, "gpt2.json", gpt2_json);
}

void job_remove(const struct job_place *p, const char *run) {
    char *path = xasprintf("%s/%s", p->dir, run);
    if (access(path, F_OK) == 0 && fixture_remove(path)) fprintf(stderr, "%s: not removed\n", path);
    free(path);
}

void job_close_place(struct job_place *p) {
    if (fixture_remove(p->dir)) fprintf(stderr, "%s: not removed\n", p->dir);
    free(p->program);
    p->program = NULL;
}

int job_setup(void **state) {
    struct job_place *p = calloc(1, sizeof *p);
    *state = p;
    return p ? job_open_place(p) : -1;
}

int job_teardown(void **state) {
    job_close_place(*state);
    free(*state);
    return 0;
}

bool job_emulate(const struct job_place *p, int devices) {
    int folder = (int)(strrchr(p->program, '/') - p->program);
    char *libraries = xasprintf("%.*s/tests/emulated", folder, p->program),
         *object = xasprintf("%s/libstarring_cuda.so", libraries), *count = xasprintf("%d", devices);
    bool built = access(object, R_OK) == 0;
    if (built) {
        setenv("STARRING_CUDA_SO", object, 1);
        setenv("LD_LIBRARY_PATH", libraries, 1);
        setenv("EMULATED_CUDA_DEVICES", count, 1);
    }
    free(libraries);
    free(object);
    free(count);
    return built;
}

// Open MPI keeps what it has allocated, in parts of it that are no longer loaded when a sanitizer looks: no file of
// suppressions can name them.
static bool is_mpi(char *const *argv) {
    bool ring = false, medium = false;
    for (; *argv; argv++) {
        if (!strcmp(*argv, "mpi") || !strcmp(*argv, "launch=mpi")) return true;
        ring = ring || !strncmp(*argv, "zero:", 5);
        medium = medium || !strcmp(*argv, "tcp");
    }
    return ring && medium;
}

static void forgive_leaks(void) {
    const char *given = getenv("ASAN_OPTIONS");
    char *options = xasprintf("%s%sdetect_leaks=0", given ? given : "", given ? ":" : "");
    setenv("ASAN_OPTIONS", options, 1);
    free(options);
}

static pid_t start_words(const struct job_place *p, char *line) {
    char *argv[WORDS_MAX] = {p->program};
    int n = 1;
    for (char *word; (word = strsep(&line, " ")) && n < WORDS_MAX - 1;)
        if (*word) argv[n++] = word;
    pid_t parent = getpid(), pid = fork();
    if (pid) return pid;
    // A test that fails, or is killed, leaves no job behind that trains on.
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) _exit(126);
    if (is_mpi(argv)) forgive_leaks();
    // Roles that people start one by one are given a key.
    if (argv[1] &&
        (!strcmp(argv[1], "scheduler") || !strcmp(argv[1], "server") || !strcmp(argv[1], "worker")))
        setenv("STARRING_JOB_KEY", "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f", 1);
    int out = -1, err = -1;
    if (!chdir(p->dir)) {
        char name[32];
        snprintf(name, sizeof name, "stdout.%d", (int)getpid());
        out = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0666);
        snprintf(name, sizeof name, "stderr.%d", (int)getpid());
        err = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    }
    if (out < 0 || err < 0) _exit(126);
    dup2(out, 1);
    dup2(err, 2);
    execv(p->program, argv);
    _exit(127);
}

char *job_printed(const struct job_place *p, pid_t pid, const char *which) {
    char name[32];
    snprintf(name, sizeof name, "%s.%d", which, (int)pid);
    char *text = run_file_read(p->dir, name, true);
    return text ? text : xstrdup("");
}

struct job_output job_wait(const struct job_place *p, pid_t pid, double deadline_s) {
    struct job_output o = {.status = -1};
    double start = now_seconds();
    int status;
    while (waitpid(pid, &status, WNOHANG) == 0) {
        if (now_seconds() - start > deadline_s) {
            kill(pid, SIGKILL);
            waitpid(pid, &status, 0);
            goto output;
        }
        usleep(2000);
    }
    o.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    // For tests/run.py, whatever the test makes of it: nobody sends these.
    if (WIFSIGNALED(status) && strchr("\4\6\7\10\13", WTERMSIG(status)))
        fprintf(stderr, "process %d died of signal %d\n", (int)pid, WTERMSIG(status));
output:
    o.seconds = now_seconds() - start;
    o.out = job_printed(p, pid, "stdout");
    o.err = job_printed(p, pid, "stderr");
    return o;
}

pid_t job_start(const struct job_place *p, const char *fmt, ...) {
    char line[2048];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    return start_words(p, line);
}

struct job_output job_run(const struct job_place *p, const char *fmt, ...) {
    char line[2048];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    return job_wait(p, start_words(p, line), RUN_DEADLINE_S);
}

void job_output_free(struct job_output *o) {
    free(o->out);
    free(o->err);
    *o = (struct job_output){0};
}

static char *read_of_run(const struct job_place *p, const char *run, const char *file, bool quiet) {
    char *name = xasprintf("%s/%s", run, file);
    char *text = run_file_read(p->dir, name, quiet);
    free(name);
    return text;
}

struct cJSON *job_json(const struct job_place *p, const char *fmt, ...) {
    char *words = NULL;
    va_list ap;
    va_start(ap, fmt);
    assert_true(vasprintf(&words, fmt, ap) >= 0);
    va_end(ap);
    struct job_output o = job_run(p, "%s", words);
    if (o.status) fail_msg("%s: status %d\n%s", words, o.status, o.err);
    cJSON *j = cJSON_Parse(o.out);
    if (!j) fail_msg("%s: no JSON:\n%s", words, o.out);
    job_output_free(&o);
    free(words);
    return j;
}

const cJSON *job_item(const cJSON *o, const char *key) {
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(o, key);
    if (!v) fail_msg("no key %s", key);
    return v;
}

double job_number(const cJSON *o, const char *key) {
    const cJSON *v = job_item(o, key);
    if (!cJSON_IsNumber(v) || !isfinite(v->valuedouble)) fail_msg("%s is no number", key);
    return v->valuedouble;
}

const char *job_text(const cJSON *o, const char *key) {
    const char *s = cJSON_GetStringValue(job_item(o, key));
    if (!s) fail_msg("%s is no text", key);
    return s;
}

struct cJSON *job_summary(const struct job_place *p, const char *run) {
    char *text = read_of_run(p, run, "summary.json", false);
    assert_non_null(text);
    cJSON *o = cJSON_Parse(text);
    free(text);
    assert_non_null(o);
    return o;
}

char *job_curve(const struct job_place *p, const char *run) {
    char *text = read_of_run(p, run, "metrics.jsonl", false);
    assert_non_null(text);
    char *curve = xcalloc(strlen(text) + 1, 1), *rest = text;
    for (char *line; (line = strsep(&rest, "\n"));) {
        char *end = strstr(line, ",\"seconds\":"), *skipped = strstr(line, ",\"skipped\":");
        if (end) *end = 0;
        char *comma = skipped ? strchr(skipped + 1, ',') : NULL;
        if (comma) *comma = 0;
        strcat(curve, line);
        if (skipped) strcat(curve, skipped);
        if (*line) strcat(curve, "\n");
    }
    free(text);
    return curve;
}

int job_lines(const struct job_place *p, const char *run) {
    char *text = read_of_run(p, run, "metrics.jsonl", true);
    if (!text) return 0;
    int lines = 0;
    size_t length = strlen(text);
    for (char *c = text; *c; c++) lines += *c == '\n';
    if (length && text[length - 1] != '\n') lines = -1;
    free(text);
    return lines;
}

int job_processes(const struct job_place *p, const char *word, pid_t *pids, int max) {
    DIR *proc = opendir("/proc");
    int count = 0;
    const char *mine = strrchr(p->dir, '/') + 1;
    for (struct dirent *e = readdir(proc); e && count < max; e = readdir(proc)) {
        char path[300], line[4096];
        pid_t pid = (pid_t)atoi(e->d_name);
        if (pid <= 0 || pid == getpid()) continue;
        snprintf(path, sizeof path, "/proc/%d/cmdline", (int)pid);
        int fd = open(path, O_RDONLY);
        ssize_t n = fd < 0 ? 0 : read(fd, line, sizeof line - 1);
        if (fd >= 0) close(fd);
        if (n <= 0) continue;
        for (ssize_t i = 0; i < n; i++)
            if (!line[i]) line[i] = ' ';
        line[n] = 0;
        if (strstr(line, mine) && strstr(line, word)) pids[count++] = pid;
    }
    closedir(proc);
    return count;
}
