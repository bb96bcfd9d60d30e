#include "shared/train/session.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include <cjson/cJSON.h>

#include "shared/core/error.h"
#include "shared/core/topology_row.h"
#include "shared/data/vocabulary.h"
#include "shared/device/device_choice.h"
#include "shared/device/device_facts.h"
#include "shared/report/metrics.h"
#include "shared/report/monitor.h"
#include "shared/report/progress.h"
#include "shared/report/run_dir.h"
#include "shared/report/span_files.h"
#include "shared/report/summary.h"
#include "shared/state/checkpoint.h"
#include "shared/time/stall_report.h"
#include "shared/train/saver.h"

#define NOTICEABLE_S 1.0  // a shorter warm-up is not printed

struct session {
    const struct session_options *o;
    const struct job *job;
    struct device *dev;
    struct stream *compute;
    struct train_parts parts;
    struct stall_watch *watch;  // NULL: no other rank waits for this one
    struct topology *topology;
    struct identity *identity;
    uint64_t start_number;          // number of this start of the job
    struct checkpoint *checkpoint;  // the checkpoint to resume from; NULL: none
    struct saver *saver;
    bool has_buffers;  // buffers were created before the topology, as on GPUs
    struct saver_buffers buffers;
    double elapsed_before;      // seconds of earlier starts, from the records in the run directory
    struct metrics *metrics;    // worker 0
    struct monitor *monitor;    // worker 0; NULL: no monitor is configured
    struct progress *progress;  // worker 0, unless quiet
    int notes_printed;          // worker 0: the number of the device's notes that it has printed
    double start_s;
};

// ---------------------------------------------------------------- the parts that a rank consists of
// Runs one pass of the model before a rank has peers, so that a GPU's libraries load what they need. The first run
// of a product or of attention may load kernels and allocate. Both may wait for all work on the device. While
// collectives run, that work may be a transfer that waits for a peer, and the peer may wait in the same way. Runs
// every unit as training and evaluation will: with the shapes in o, with those of shorter sequences if any, and on
// zero weights. Blocks. Returns 0, or -1 after logging.
static int warm_up(struct model *m, const struct model_options *o, bool accumulates, bool shorter) {
    enum { WEIGHTS, GRAD, TIED_WEIGHTS, TIED_GRAD, PARTS };
    enum { OVERWRITE, ADD, EVALUATE, PASSES };
    const struct backend *b = dev_backend(o->dev);
    const struct layout *l = layout_of_model(o->layout);
    int last = l->count - 1, rc = 0;
    bool lora = l != o->layout, tied_head = o->spec->tied;
    // 1. Zeros as long as the largest unit (and as a tied embedding), not counted in the ledger. They are freed
    // before the topology allocates, which needs more than that unless the model is nearly all embedding.
    size_t bytes[PARTS] = {0}, e = dtype_size(o->dtype);
    void *zeros[PARTS] = {0};
    bytes[WEIGHTS] = bytes[GRAD] = (size_t)layout_largest(l) * e;
    if (tied_head) bytes[TIED_WEIGHTS] = bytes[TIED_GRAD] = (size_t)l->units[0].n_pad * e;
    for (int i = 0; i < PARTS && !rc; i++)
        if (bytes[i] && !(zeros[i] = b->alloc(o->dev, bytes[i])))
            rc = fail("out of device memory: no %zu MiB for a first pass of the model",
                      (bytes[WEIGHTS] + bytes[TIED_WEIGHTS]) >> 19);
    // 2. The passes, over different tokens: with one token only, the embedding's backward would sum all rows into one.
    int64_t rows = o->batch * o->seq;
    int32_t *tokens = xcalloc((size_t)rows, sizeof *tokens);
    for (int64_t i = 0; i < rows; i++) tokens[i] = (int32_t)(i % o->spec->vocab);
    for (int64_t seq = o->seq; seq > 0; seq = shorter ? data_shorter(seq, o->seq) : 0) {
        model_set_seq(m, seq);
        for (int k = OVERWRITE; k < PASSES && !rc; k++) {
            bool eval = k == EVALUATE, add = k == ADD;
            if ((add && !accumulates) || (eval && seq < o->seq)) continue;
            struct unit_view view = {.weights = zeros[WEIGHTS]}, tied = {.weights = zeros[TIED_WEIGHTS]};
            model_set_batch(m, tokens, tokens, eval ? 0.0f : 1.0f / (float)rows, !add);
            for (int u = 0; u <= last; u++)
                model_forward(m, u, &view, u == last && tied_head && eval ? &tied : NULL, eval);
            tied = (struct unit_view){
                .weights = zeros[TIED_WEIGHTS], .grad = lora ? NULL : zeros[TIED_GRAD], .accumulate = add};
            for (int u = last; u >= lora && !eval; u--) {
                bool trained = l->units[u].trained > 0;
                view = (struct unit_view){
                    .weights = zeros[WEIGHTS], .grad = trained ? zeros[GRAD] : NULL, .accumulate = add};
                model_backward(m, u, &view, u == last && tied_head ? &tied : NULL);
            }
        }
    }
    if (!rc && stream_sync(o->compute)) rc = fail("a first pass of the model: %s", dev_error(o->dev));
    // 3. Frees everything.
    free(tokens);
    for (int i = 0; i < PARTS; i++)
        if (zeros[i]) b->free(o->dev, zeros[i], bytes[i]);
    return rc;
}

static void on_start(void *ctx, const struct config *c, const struct model_spec *s, const struct layout *l) {
    struct session *x = ctx;
    if (x->progress) progress_start(x->progress, c, s, l);
}

static void on_step(void *ctx, const struct step_record *r) {
    struct session *x = ctx;
    if (x->metrics) metrics_step(x->metrics, r);
    if (x->monitor) monitor_step(x->monitor, r);
    if (x->progress) progress_step(x->progress, r);
    device_notes_print(x->dev, &x->notes_printed);
}

static int open_device(struct session *x) {
    const struct config *c = x->job->config;
    const struct backend *backend = device_backend(c);
    if (!backend) return -1;
    error_set_label(x->o->rank >= 0 ? "worker %d" : "worker", x->o->rank);
    int local_rank = x->o->local_rank > 0 ? x->o->local_rank : 0;
    struct device_options d = {.threads = job_threads(x->job),
                               .index = local_rank % backend_devices(backend),
                               .label = error_label(),
                               .kernel = c->cpu_kernel,
                               .cuda = c->cuda,
                               .trace = c->trace,
                               .watch_host = true,
                               .memory_bytes = (size_t)c->device_bytes};
    if (dev_open(backend, &d, &x->dev)) return fail("--device %s: cannot open it", backend->name);
    x->compute = stream_create(x->dev, "compute");
    return x->compute ? 0 : fail("--device %s: %s", backend->name, dev_error(x->dev));
}

// Everything that a GPU and its libraries allocate and load comes before the topology: none of it may happen while
// collectives run (warm_up, above). Ranks of a star and local runs do the same, so that their first steps are
// comparable.
static int prepare_model(struct session *x) {
    const struct config *c = x->job->config;
    struct model_options mo = train_model_options(c, &x->job->spec, x->job->layout);
    double start = now_seconds();
    if (dev_host_memory(x->dev)) return 0;
    mo.dev = x->dev;
    mo.compute = x->compute;
    if (train_parts_create(&x->parts, x->job, x->dev, x->compute) ||
        warm_up(x->parts.model, &mo, mo.micro_batches > 1, data_documents(x->job->data) > 0))
        return -1;
    struct prediction p = {0};
    int rank = x->o->rank > 0 ? x->o->rank : 0;
    if (c->recovery.checkpoint_every > 0 && c->row->predict(c, x->job->layout, "worker", rank, &p)) return -1;
    x->has_buffers = x->job->dir;
    if (x->has_buffers && saver_buffers_create(&x->buffers, c, p.state_bytes, x->dev))
        return fail("no memory or stream for checkpoints and snapshots: %s", dev_error(x->dev));
    double seconds = now_seconds() - start;
    if (x->o->rank <= 0 && seconds >= NOTICEABLE_S)
        fprintf(stderr, "starring: %.1f s for a first pass of the model, before the first step\n", seconds);
    return 0;
}

// Before the first step: checks that all ranks belong to one run. Each process has resolved "auto" for its own machine.
static int compare_ranks(struct session *x) {
    if (x->checkpoint) {
        char *from = xasprintf("step %lld, xxh64 %s", (long long)checkpoint_train(x->checkpoint)->step,
                               checkpoint_seal(x->checkpoint));
        identity_put(x->identity, "recovery.resumed", from);
        free(from);
    }
    return identity_agree(x->topology, x->identity);
}

// Opens the checkpoint that this rank resumes from. The ranks of a star receive its path.
static int open_checkpoint(struct session *x) {
    const struct job *j = x->job;
    struct topology *t = x->topology;
    struct identity_source source = job_identity(j);
    bool named = t->state_servers && !j->config->recovery.resume_weights_only;
    char *found = NULL;
    x->identity = identity_make(&source);
    if (t->joined_running_job) return 0;
    if (!named && !j->resume_found && resume_find(j->config, false, &found)) return -1;
    const char *path = named ? t->checkpoint : j->resume ? j->resume : found;
    if (path && *path && !(x->checkpoint = resume_open(path, &source, false))) {
        free(found);
        return -1;
    }
    free(found);
    if (!x->checkpoint || j->config->recovery.resume_weights_only) return 0;
    t->start = *checkpoint_train(x->checkpoint);
    t->start.steps_of_run = train_state_steps(&t->start);
    // Worker 0's own step count is kept only if both runs share a budget.
    if (!t->plan.independent) t->start.step = t->start.steps_of_run;
    return 0;
}

// Sets the number of this start of the job, for the names of checkpoint files: the job's own, or one that rank 0 draws.
static int draw_start_number(struct session *x) {
    uint32_t own[2] = {0};
    struct topology *t = x->topology;
    x->start_number = t->job;
    const struct config *c = x->job->config;
    if (t->job || (c->recovery.checkpoint_every <= 0 && !c->eval_batches)) return 0;
    if (t->rank == 0 && getrandom(own, sizeof own, 0) != (ssize_t)sizeof own) own[0] = (uint32_t)getpid();
    double halves[2] = {own[0], own[1]};
    if (topology_sum(t, halves, 2)) return -1;
    x->start_number = (uint64_t)halves[0] << 32 | (uint64_t)halves[1];
    return 0;
}

static int open_output(struct session *x) {
    const struct job *j = x->job;
    error_set_label("worker %d", x->topology->rank);
    if (x->topology->rank != 0) return 0;
    const char *from = x->checkpoint ? checkpoint_path(x->checkpoint) : NULL;
    int64_t first = x->topology->start.step;
    // In a later start of the job the directory already belongs to the job, even if this process was started with
    // owns_dir.
    bool owns = j->dir && j->owns_dir, later = x->topology->epoch > 1;
    if (owns && later) run_dir_adopt(j->dir, j->config);
    if (owns && !later && resume_take_dir(j->config, from, j->dir, j->force)) return -1;
    if (j->dir && run_dir_cut(j->dir, first, train_state_steps(&x->topology->start))) return -1;
    if (j->dir && !(x->metrics = metrics_create(j->dir, first, &x->elapsed_before))) return -1;
    if (monitor_create(j->config, &x->topology->start, &x->monitor)) return -1;
    FILE *file = j->steps_to_stderr ? stderr : stdout;
    struct progress_options p = {.file = file,
                                 .bar = !j->no_bar && isatty(fileno(file)),
                                 .first = first ? train_state_steps(&x->topology->start) : 0};
    if (!j->no_metrics) x->progress = progress_create(&p);
    return 0;
}

// Returns whether there is text to evaluate snapshots on.
static bool evaluates(const struct session *x) {
    const struct config *c = x->job->config;
    int64_t held = data_val_tokens(x->job->data);
    bool asked = c->eval_every > 0 || c->eval_every_seconds > 0 || c->target_loss > 0;
    if (held <= c->seq && x->job->dir && (asked || c->val_fraction > 0) && x->topology->rank == 0)
        (asked ? warn : info)(
            "nothing is evaluated: %s holds out %lld tokens, fewer than a sequence and one more; see "
            "data.val_fraction and data.val_path",
            c->data, (long long)held);
    return held > c->seq;
}

static struct saver *open_saver(const struct session *x) {
    return saver_create(&(struct saver_options){.config = x->job->config,
                                                .dir = x->job->dir,
                                                .topology = x->topology,
                                                .start_number = x->start_number,
                                                .identity = x->identity,
                                                .buffers = x->has_buffers ? &x->buffers : NULL,
                                                .evaluates = evaluates(x)});
}

static int write_report(struct session *x, struct train_result *result) {
    const struct job *j = x->job;
    const struct batch_count *n = &result->counted;
    bool whole = data_documents(j->data) && n->tokens > 0;
    double seq = whole ? n->squares / (double)n->tokens : (double)j->config->seq;
    struct run_facts facts = {.params = j->layout->params,
                              .frozen_params = j->layout->frozen,
                              .flops = {model_flops_per_token(&j->spec, seq),
                                        recompute_flops_per_token(&j->config->recompute, &j->spec, seq)},
                              .tokens_per_sequence = whole ? (double)n->tokens / (double)result->sequences
                                                     : data_documents(j->data) ? 0
                                                                               : seq,
                              .padding = whole ? 1 - (double)n->tokens / (double)n->padded_tokens : 0,
                              .wall_seconds = now_seconds() - x->start_s,
                              .weights_hash = result->weights_hash,
                              .has_hash = result->has_hash,
                              .interrupted = result->interrupted,
                              .resumed_from = train_state_steps(&x->topology->start),
                              .place = x->topology->plan.independent ? result->steps_of_run : 0,
                              .medium = x->topology->medium,
                              .launch = x->topology->launch,
                              .data = data_description(j->data)};
    struct model_options model = train_model_options(j->config, &j->spec, j->layout);
    facts.head = model_head_plan(&model);
    facts.cpu_kernel = device_cpu_kernel(j->config);
    // If a file cannot be written, this rank still takes part in the collectives below.
    int rc = result->file_failed ? -1 : 0;
    if (trace_write_worker(j->dir, x->topology->rank, x->dev, x->parts.timeline, j->config->trace)) rc = -1;
    result->report.stall_report = stall_report_take(
        &(struct stall_report_options){.timeline = x->parts.timeline,
                                       .watch = x->watch,
                                       .begin = result->report.span.begin_ns,
                                       .offset = timeline_clock(x->parts.timeline).offset_ns,
                                       .alone = x->topology->plan.independent});
    if (summary_write_rank(j->dir, &result->report, result->report.rank == 0 ? &facts : NULL)) rc = -1;
    stall_report_free(&result->report.stall_report);
    return rc;
}

static int run_loop(struct session *x, struct session_end *end) {
    const struct job *j = x->job;
    struct train_result result;
    struct train_observer observer = {on_start, on_step, x};
    char *weights = j->dir && !j->no_weights ? xasprintf("%s/weights", j->dir) : NULL;
    char *tokenizer =
        weights ? tokenizer_to_keep(j->config->model, j->spec.vocab, j->config->tokenizer) : NULL;
    struct train_options t = {.job = j,
                              .topology = x->topology,
                              .observer = x->topology->rank == 0 ? &observer : NULL,
                              .saver = x->saver,
                              .watch = x->watch,
                              .checkpoint = x->checkpoint,
                              .elapsed_before = x->elapsed_before,
                              .weights_out = weights,
                              .tokenizer_in = tokenizer,
                              .parts = &x->parts};
    int rc = train_run(&t, &result);
    *end = (struct session_end){result.interrupted, x->topology->rank, x->topology->job};
    if (rc) topology_abort(x->topology, error_last());
    int written = !rc && j->dir ? write_report(x, &result) : 0;
    // This sum is a barrier: afterwards every worker's report is on disk. The weights are too, even if a report failed.
    double nothing = 0;
    if (!rc && x->topology->size > 1) rc = topology_sum(x->topology, &nothing, 1);
    if (!rc) rc = written;
    free(weights);
    free(tokenizer);
    return rc;
}

int session_run(const struct session_options *o, struct session_end *end) {
    struct session x = {.o = o, .job = o->job, .start_s = now_seconds()};
    struct session_end ended = {.rank = o->rank};
    int rc = open_device(&x);
    if (!rc) rc = prepare_model(&x);
    if (!rc && !(x.topology = o->create(o->ctx, x.dev, x.compute))) rc = -1;
    if (!rc && (rc = open_checkpoint(&x))) topology_abort(x.topology, error_last());
    if (!rc) rc = compare_ranks(&x);
    if (!rc) rc = draw_start_number(&x);
    if (!rc && (rc = open_output(&x))) topology_abort(x.topology, error_last());
    if (!rc) x.saver = open_saver(&x);
    if (!rc && x.topology->size > 1 && !(x.watch = stall_watch_open())) rc = -1;
    if (!rc) rc = run_loop(&x, &ended);
    stall_watch_close(&x.watch);
    if (end) *end = ended;
    progress_destroy(&x.progress);
    if (metrics_destroy(&x.metrics)) rc = -1;
    if (monitor_destroy(&x.monitor)) rc = -1;
    saver_finish(x.saver);
    if (x.topology) topology_destroy(&x.topology);
    saver_destroy(&x.saver);
    saver_buffers_destroy(&x.buffers);
    checkpoint_close(&x.checkpoint);
    identity_destroy(&x.identity);
    if (x.dev && o->end) o->end(o->ctx);
    train_parts_destroy(&x.parts);
    if (x.compute) stream_destroy(&x.compute);
    if (x.dev) dev_close(&x.dev);
    return rc;
}
