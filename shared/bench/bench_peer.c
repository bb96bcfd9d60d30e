#include "shared/bench/bench_peer.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shared/core/error.h"
#include "shared/core/system.h"
#include "shared/launch/launch.h"

#define GRACE_S   2.0
#define PATIENT_S 600.0  // after so many seconds a message says that the bench still waits for the peer
#define LINE_MOST 65536

// The program's text (Makefile).
__asm__(
    ".section .rodata\n"
    "torch_peer_begin: .incbin \"shared/bench/torch_peer.py\"\n"
    ".byte 0\n"
    ".previous\n");
extern const char torch_peer_begin[];

enum way { EAGER, COMPILED, WAYS };
static const char *const way_names[WAYS] = {"eager", "compiled"};

struct bench_peer {
    struct launcher *launcher;
    int socket;
    const char *path;  // owned by the caller
    cJSON *says;       // its first answer: versions, threads
    char line[LINE_MOST];
    struct bench_series ours, theirs[WAYS];  // seconds of a step, one value per round
    char *why_not;                           // why it cannot be compiled; NULL: it can
    struct bench_series products;            // seconds of its products, one value per step
    double product_flops, peak_bytes;
    bool failed;
};

// ---------------------------------------------------------------- the request
// A name without a slash is searched in PATH, as a shell does.
static char *find_program(const char *name) {
    struct stat st;
    const char *at = strchr(name, '/') ? NULL : getenv("PATH");
    if (!at) return stat(name, &st) || !S_ISREG(st.st_mode) || access(name, X_OK) ? NULL : xstrdup(name);
    for (;; at++) {
        int length = (int)strcspn(at, ":");
        char *path = xasprintf("%.*s/%s", length, at, name);
        if (length && !stat(path, &st) && S_ISREG(st.st_mode) && !access(path, X_OK)) return path;
        free(path);
        at += length;
        if (!*at) return NULL;
    }
}

char *bench_peer_check(const char *python, const struct config *c) {
    const struct {
        bool differs;
        const char *says;
    } rules[] = {
        {c->dtype == DT_F16, "PyTorch's step is in bf16 or fp32: give --dtype bf16 or fp32"},
        {c->optimizer.row->op != OP_ADAMW,
         "PyTorch's step updates with AdamW: leave optimizer.type as it is"},
        {c->accumulation > 1, "PyTorch's step has one micro-batch: leave gradient_accumulation_steps out"},
        {c->recompute.kind != RECOMPUTE_NONE, "PyTorch's step recomputes nothing: leave recomputation out"},
    };
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (rules[i].differs) {
            fail("bench step: --peer: %s", rules[i].says);
            return NULL;
        }
    char *path = find_program(python);
    if (!path)
        fail(
            "bench step: --peer %s: there is no such program that can be run; give a Python that has PyTorch, as "
            "venv/bin/python",
            python);
    return path;
}

static char *job_text(const struct bench_peer_job *job) {
    const struct config *c = job->config;
    const struct model_spec *s = job->spec;
    const struct model_traits *t = &s->traits;
    cJSON *j = cJSON_CreateObject(), *m = cJSON_AddObjectToObject(j, "model");
    const struct {
        const char *name;
        double value;
    } sizes[] = {{"vocab", s->vocab},
                 {"channels", s->channels},
                 {"layers", s->layers},
                 {"heads", s->heads},
                 {"kv_heads", s->kv_heads},
                 {"head_size", s->head_size},
                 {"ffn", s->ffn},
                 {"norm_eps", s->norm_eps},
                 {"rope_theta", s->rope_theta},
                 {"positions", t->positions == POSITIONS_LEARNED ? s->max_positions : 0}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) json_put(m, sizes[i].name, sizes[i].value);
    BENCH_PUT(m, TEXT("norm", t->norm == NORM_RMS ? "rms" : "layer"),
              TEXT("mlp", t->mlp == MLP_SWIGLU ? "swiglu" : "gelu"), FLAG("qkv_bias", t->qkv_bias),
              FLAG("out_bias", t->out_bias), FLAG("mlp_bias", t->mlp_bias), FLAG("tied", s->tied));
    BENCH_PUT(j, NUMBER("batch", c->micro_batch), NUMBER("seq", c->seq), TEXT("dtype", dtype_name(c->dtype)),
              TEXT("device", config_device(c)->gpu ? "cuda" : "cpu"),
              NUMBER("threads", c->threads ? c->threads : processors_given()), NUMBER("matmul", job->side),
              NUMBER("launches", job->launches), NUMBER("clip", c->clip));
    char *text = cJSON_PrintUnformatted(j);
    cJSON_Delete(j);
    return text;
}

// ---------------------------------------------------------------- the process
// Returns the answer to a line (the caller frees it), or NULL after logging: the process has ended, or its answer is
// invalid.
static cJSON *ask(struct bench_peer *p, const char *line) {
    char *whole = xasprintf("%s\n", line);
    // If the process has ended, reading reports it.
    for (size_t sent = 0, size = strlen(whole); sent < size;) {
        ssize_t n = send(p->socket, whole + sent, size - sent, MSG_NOSIGNAL);
        if (n <= 0) break;
        sent += (size_t)n;
    }
    free(whole);
    cJSON *j = NULL;
    if (!launcher_read_line(p->launcher, p->socket, PATIENT_S, p->line, LINE_MOST) &&
        !cJSON_IsObject(j = json_parse(p->line, strlen(p->line))))
        fail("PyTorch's process said \"%.80s\"", p->line);
    if (cJSON_IsObject(j)) return j;
    cJSON_Delete(j);
    p->failed = true;
    return NULL;
}

static int start(struct bench_peer *p) {
    int ends[2];
    char *const argv[] = {(char *)p->path, "-c", (char *)torch_peer_begin, NULL};
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends))
        return fail("socketpair: %s", strerror(errno));
    struct launch_child child = {.role = "PyTorch",
                                 .rank = -1,
                                 .program = p->path,
                                 .argv = argv,
                                 .input_fd = ends[1],
                                 .output_fd = ends[1]};
    p->launcher = launcher_create(&(struct launch_options){.grace_s = GRACE_S});
    p->socket = ends[0];
    int rc = launcher_start(p->launcher, &child);
    close(ends[1]);
    return rc;
}

// Logs why the answer is not the requested one. Returns -1.
static int refused(const struct bench_peer *p, const cJSON *answer, const char *what) {
    const char *no_room = json_text(answer, "no_room", NULL);
    return fail("bench step: --peer %s: PyTorch's %s failed%s: %s", p->path, what,
                no_room ? " beside ours; a smaller --batch needs less" : "",
                no_room ? no_room : json_text(answer, "error", "it does not say why"));
}

// Returns 0, or -1 after logging, with the exit status in *status.
static int meet(struct bench_peer *p, const struct bench_peer_job *job, int *status) {
    *status = EXIT_USAGE;
    char *text = start(p) ? NULL : job_text(job);
    p->says = text ? ask(p, text) : NULL;
    free(text);
    const char *missing = json_text(p->says, "missing", NULL);
    double params = json_number(p->says, "params");
    if (!p->says)
        return fail(
            "bench step: --peer %s: PyTorch's step did not answer (its own error is above); give a "
            "Python that has PyTorch 2.5 or newer",
            p->path);
    if (missing)
        return fail(
            "bench step: --peer %s: %s; install it there (%s -m pip install torch), or give another Python",
            p->path, missing, p->path);
    if (params == (double)job->layout->params) return 0;
    *status = EXIT_RUN_FAILED;
    if (params > 0)
        return fail(
            "bench step: --peer: %s has %.0f parameters here and %.0f in PyTorch's step: they are not the same model",
            job->spec->name, (double)job->layout->params, params);
    return refused(p, p->says, "model");
}

struct bench_peer *bench_peer_start(const char *path, const struct bench_peer_job *job, int *status) {
    struct bench_peer *p = xcalloc(1, sizeof *p);
    p->path = path;
    p->product_flops = 2.0 * (double)job->side * (double)job->side * (double)job->side * job->launches;
    if (!meet(p, job, status)) return p;
    bench_peer_end(&p);
    return NULL;
}

void bench_peer_end(struct bench_peer **pp) {
    struct bench_peer *p = *pp;
    if (!p) return;
    if (p->socket) close(p->socket);
    int number = p->launcher ? launcher_interrupted(p->launcher) : 0;
    launcher_destroy(&p->launcher);
    if (number) raise(number);  // the launcher consumed the signal: Ctrl-C must still end the bench
    bench_series_free(&p->ours);
    bench_series_free(&p->products);
    for (int w = 0; w < WAYS; w++) bench_series_free(&p->theirs[w]);
    cJSON_Delete(p->says);
    free(p->why_not);
    free(p);
    *pp = NULL;
}

// ---------------------------------------------------------------- rounds
// Without a compiler the step is not compiled, and only eager counts, in all rounds.
static int time_way(struct bench_peer *p, enum way way, int steps, int warmup) {
    char line[96];
    snprintf(line, sizeof line, "{\"compile\": %s, \"steps\": %d, \"warmup\": %d}",
             way == COMPILED ? "true" : "false", steps, p->theirs[way].count ? 0 : warmup);
    cJSON *j = ask(p, line);
    if (!j) return -1;
    struct bench_series seconds = {0};
    const cJSON *of_one, *error = json_item(j, "error");
    cJSON_ArrayForEach(of_one, json_item(j, "seconds")) bench_series_add(&seconds, of_one->valuedouble);
    cJSON_ArrayForEach(of_one, json_item(j, "product_seconds"))
        bench_series_add(&p->products, of_one->valuedouble);
    int rc = 0;
    if (seconds.count == steps) {
        bench_series_add(&p->theirs[way], bench_series_median(&seconds));
        p->peak_bytes = json_number(j, "peak_bytes");
    } else if (way == COMPILED && error && !p->theirs[way].count) {
        p->why_not = xstrdup(json_text(j, "error", ""));
    } else {
        rc = refused(p, j, way == COMPILED ? "compiled step" : "eager step");
    }
    bench_series_free(&seconds);
    cJSON_Delete(j);
    return rc;
}

int bench_peer_round(struct bench_peer *p, int steps, int warmup, double ours_s) {
    if (p->failed) return -1;
    bench_series_add(&p->ours, ours_s);
    for (int way = 0; way < WAYS; way++)
        if (!(way == COMPILED && p->why_not) && time_way(p, (enum way)way, steps, warmup)) {
            p->failed = true;
            return -1;
        }
    return 0;
}

// ---------------------------------------------------------------- figures
static cJSON *series_json(const struct bench_series *s, double tokens) {
    cJSON *o = cJSON_CreateObject();
    BENCH_PUT(o, NUMBER("step_seconds", bench_series_median(s)),
              NUMBER("tokens_per_second", tokens / bench_series_median(s)));
    cJSON_AddItemToObject(o, "rounds", cJSON_CreateDoubleArray(s->values, s->count));
    return o;
}

cJSON *bench_peer_figures(struct bench_peer *p, double tokens) {
    const struct bench_series *compiled = &p->theirs[COMPILED], *better = &p->theirs[EAGER];
    if (compiled->count && bench_series_median(compiled) < bench_series_median(better)) better = compiled;
    struct bench_series ratios = {0};
    for (int i = 0; i < better->count; i++) bench_series_add(&ratios, better->values[i] / p->ours.values[i]);
    cJSON *o = cJSON_CreateObject();
    BENCH_PUT(o, TEXT("pytorch", json_text(p->says, "version", "")),
              TEXT("cuda", json_text(p->says, "cuda", NULL)),
              NUMBER("threads", json_number(p->says, "threads")),
              NUMBER("params", json_number(p->says, "params")), NUMBER("peak_bytes", p->peak_bytes),
              NUMBER("matmul_flops_per_second", p->product_flops / bench_series_median(&p->products)));
    cJSON_AddItemToObject(o, "starring", series_json(&p->ours, tokens));
    for (int w = 0; w < WAYS; w++)
        cJSON_AddItemToObject(o, way_names[w],
                              p->theirs[w].count ? series_json(&p->theirs[w], tokens) : cJSON_CreateNull());
    BENCH_PUT(o, TEXT("not_compiled", p->why_not), TEXT("better", way_names[better == compiled]),
              NUMBER("ratio", bench_series_median(&ratios)),
              NUMBER("ratio_least", bench_series_quantile(&ratios, 0)),
              NUMBER("ratio_most", bench_series_quantile(&ratios, 1)), NUMBER("#rounds", ratios.count));
    bench_series_free(&ratios);
    return o;
}
