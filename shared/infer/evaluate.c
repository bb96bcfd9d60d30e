#include "shared/infer/evaluate.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/core/arena.h"
#include "shared/core/error.h"
#include "shared/core/numbers.h"
#include "shared/core/system.h"
#include "shared/core/text.h"
#include "shared/device/device_choice.h"
#include "shared/hf/hf_dir.h"
#include "shared/model/model.h"
#include "shared/report/evals.h"
#include "shared/report/run_state.h"
#include "shared/state/checkpoint_read.h"

#define PROGRESS_FIRST_S 2.0   // seconds of an evaluation before it prints its progress
#define PROGRESS_EVERY_S 10.0  // seconds between two progress lines

struct evaluation {
    const struct evaluate_options *o;
    const struct config *c;
    struct layout *layout;  // of the trained units, for one rank
    const struct layout *model;
    struct device *dev;
    struct stream *compute;
    struct arena arena;
    struct unit_view *units;
    struct model *many,
        *single;  // `many` computes `batch` windows; `single` one, for an incomplete last batch
    int64_t batch, windows, requested;  // requested: the windows of eval_batches; 0: all
    int64_t done, all;                  // windows of all snapshots together
    double begin_s, printed_s;
    int32_t *tokens, *targets;
    void *host;  // a unit's weights from the file; has room for the largest unit
};

int evaluate_waiting(const char *dir) {
    int count;
    free(checkpoint_steps(dir, CHECKPOINT_WEIGHTS, &count));
    return count;
}

void evaluate_report_waiting(const char *dir, const char *why) {
    int count = evaluate_waiting(dir);
    char program[PROGRAM_WORD], *word = shell_word(dir);
    if (count)
        info("%s%d snapshot%s not evaluated yet: %s evaluate %s evaluates %s", why, count,
             count > 1 ? "s are" : " is", program_word(program), word, count > 1 ? "them" : "it");
    free(word);
}

// ---------------------------------------------------------------- device, model, weights
static struct model *make_model(const struct evaluation *x, int64_t batch) {
    return model_create(&(struct model_options){.spec = x->o->spec,
                                                .layout = x->layout,
                                                .dev = x->dev,
                                                .compute = x->compute,
                                                .dtype = x->c->dtype,
                                                .batch = batch,
                                                .seq = x->c->seq,
                                                .logits_bytes = x->c->logits_bytes});
}

// Returns the global batches that EVAL_AUTO uses per evaluation: as many as steps between two evaluations, so that all
// evaluations together predict no more tokens than the run was trained on. With eval_every_seconds the number of
// evaluations is unknown: a tenth of the steps.
static int64_t batches_between(const struct config *c) {
    if (c->eval_every > 0) return c->eval_every < c->steps ? c->eval_every : c->steps;
    return c->eval_every_seconds > 0 ? (c->steps + 9) / 10 : c->steps;
}

// Loads the frozen weights, which no snapshot contains. most: elements of the largest unit.
static int load_frozen(struct evaluation *x, int64_t most) {
    struct hf_reader *reader = NULL;
    if (!x->layout->model) return 0;
    if (hf_has_weights(x->c->model) && !(reader = hf_open(x->c->model, x->o->spec, x->layout))) return -1;
    float *values = xcalloc((unsigned long)most, sizeof *values);
    int rc = 0;
    for (int u = 0; u < x->model->count && !rc; u++) {
        int64_t n = x->model->units[u].n_pad;
        if ((rc = hf_initial_unit(reader, x->layout, u, x->c->seed, values))) break;
        for (int64_t i = 0; i < n; i++) dtype_store(x->c->dtype, x->host, (size_t)i, values[i]);
        dev_copy(x->compute, (void *)x->units[u].weights, x->host, (size_t)n * dtype_size(x->c->dtype));
        if (stream_sync(x->compute)) rc = fail("evaluation: %s", dev_error(x->dev));
    }
    free(values);
    hf_close(&reader);
    return rc;
}

static int prepare(struct evaluation *x) {
    const struct config *c = x->c;
    // 1. The windows: all, or those of the requested global batches; EVALUATE_TOKENS at once.
    x->windows = (data_val_tokens(x->o->data) - 1) / c->seq;
    x->requested = size_times(c->eval_batches > 0 ? c->eval_batches : 0, c->train_batch);
    int64_t few =
        c->eval_batches == EVAL_AUTO ? size_times(batches_between(c), c->train_batch) : x->requested;
    if (c->eval_batches != EVAL_ALL && few < x->windows) x->windows = few;
    x->batch = EVALUATE_TOKENS / c->seq > 1 ? EVALUATE_TOKENS / c->seq : 1;
    if (x->batch > x->windows) x->batch = x->windows;
    // 2. The device, with as many processors as the run could use.
    long given = processors_given(), wanted = (long)c->threads * c->workers;
    struct device_options d = {.threads = (int)(wanted > 0 && wanted < given ? wanted : given),
                               .label = "evaluation",
                               .kernel = c->cpu_kernel,
                               .cuda = c->cuda};
    const struct backend *backend;
    if (!(x->layout = model_layout_create(x->o->spec, 1)) || !(backend = device_backend(c))) return -1;
    if (dev_open(backend, &d, &x->dev)) return fail("evaluation: --device %s: cannot open it", backend->name);
    x->compute = stream_create(x->dev, "compute");
    if (!x->compute) return fail("evaluation: --device %s: %s", backend->name, dev_error(x->dev));
    // 3. Memory for weights, models and batches.
    int64_t most = 0;
    arena_init(&x->arena, x->dev);
    x->model = layout_of_model(x->layout);
    x->units = xcalloc((unsigned long)x->model->count, sizeof *x->units);
    for (int u = 0; u < x->model->count; u++) {
        int64_t n = x->model->units[u].n_pad;
        x->units[u].weights = arena_take(&x->arena, MEM_PARAMETER, (size_t)n * dtype_size(c->dtype));
        if (n > most) most = n;
    }
    if (x->arena.failed || !(x->many = make_model(x, x->batch))) return -1;
    if (x->windows % x->batch && !(x->single = make_model(x, 1))) return -1;
    x->host = xcalloc((unsigned long)most, dtype_size(c->dtype));
    x->tokens = xcalloc((unsigned long)(x->batch * c->seq), sizeof *x->tokens);
    x->targets = xcalloc((unsigned long)(x->batch * c->seq), sizeof *x->targets);
    return load_frozen(x, most);
}

static void release(struct evaluation *x) {
    if (x->compute) stream_sync(x->compute);
    model_destroy(&x->many);
    model_destroy(&x->single);
    if (x->arena.dev) arena_release(&x->arena);
    if (x->compute) stream_destroy(&x->compute);
    if (x->dev) dev_close(&x->dev);
    if (x->layout) layout_destroy(&x->layout);
    free(x->units);
    free(x->host);
    free(x->tokens);
    free(x->targets);
}

// Loads the snapshot's weights to the device. Returns 0, or -1 with error_last or dev_error.
static int load(struct evaluation *x, struct checkpoint *c) {
    if (strcmp(checkpoint_dtype(c), dtype_name(x->c->dtype)) != 0)
        return fail("%s: has weights of %s, the run is of %s", checkpoint_path(c), checkpoint_dtype(c),
                    dtype_name(x->c->dtype));
    for (int u = 0; u < x->model->count; u++) {
        int trained = layout_trained(x->layout, u);
        if (trained < 0) continue;
        size_t bytes = (size_t)x->layout->units[trained].n_pad * dtype_size(x->c->dtype);
        if (checkpoint_weights(c, x->layout, trained, x->host)) return -1;
        dev_copy(x->compute, (void *)x->units[u].weights, x->host, bytes);
        if (stream_sync(x->compute)) return -1;
    }
    return 0;
}

// ---------------------------------------------------------------- the loss
// Estimated from the windows done so far: "3:20 left".
static const char *time_left(char text[32], const struct evaluation *x) {
    double spent_s = now_seconds() - x->begin_s;
    return format_left(text, spent_s / fmax((double)x->done, 1) * (double)(x->all - x->done));
}

static void print_progress(struct evaluation *x) {
    char left[32];
    double now_s = now_seconds();
    if (!x->o->output ||
        now_s - x->printed_s < (x->printed_s > x->begin_s ? PROGRESS_EVERY_S : PROGRESS_FIRST_S))
        return;
    x->printed_s = now_s;
    fprintf(x->o->output, "evaluated %3.0f%%  %s\n", 100.0 * (double)x->done / (double)x->all,
            time_left(left, x));
    fflush(x->o->output);
}

// Runs windows [first, end) through m, `batch` at a time. Returns their summed loss; NAN when the device has failed or
// the evaluation was stopped.
static double sum_of(struct evaluation *x, struct model *m, int64_t first, int64_t end, int64_t batch) {
    int last = x->model->count - 1;
    for (int64_t w = first; w < end; w += batch) {
        struct data_slice slice = {.first = w, .count = batch, .seq = x->c->seq};
        if (x->o->stop && *x->o->stop) return NAN;
        data_val_batch(x->o->data, &slice, x->tokens, x->targets);
        model_set_batch(m, x->tokens, x->targets, 0.0f, w == first);
        for (int u = 0; u <= last; u++)
            model_forward(m, u, &x->units[u], u == last && x->o->spec->tied ? &x->units[0] : NULL, true);
        if (stream_sync(x->compute)) return NAN;  // afterwards the tokens may be overwritten
        x->done += batch;
        print_progress(x);
    }
    return first < end ? model_loss_sum(m) : 0;
}

// ---------------------------------------------------------------- all snapshots
static void print_result(const struct evaluation *x, const struct eval_record *r) {
    char left[32];
    if (!x->o->output) return;
    fprintf(x->o->output,
            "step %4lld/%lld  held-out loss %.4f (unigram entropy of the text: %.4f nats)%s%s\n",
            (long long)r->step, (long long)x->c->steps, r->val_loss, r->unigram_entropy,
            x->done < x->all ? "  " : "", x->done < x->all ? time_left(left, x) : "");
    fflush(x->o->output);
}

static enum evaluated evaluate_one(struct evaluation *x, int64_t step, struct evals *evals) {
    char *path = checkpoint_path_of(x->o->dir, CHECKPOINT_WEIGHTS, step);
    error_quiet(QUIET_ALL);
    struct checkpoint *c = checkpoint_open(path);
    int rc = c ? load(x, c) : -1;
    error_quiet(QUIET_NOT);
    struct train_state at = {0};
    if (rc == 0) at = *checkpoint_train(c);
    double seconds = rc ? 0 : checkpoint_seconds(c);
    checkpoint_close(&c);
    if (dev_error(x->dev)[0])
        fail("evaluation: %s: %s", path, dev_error(x->dev));
    else if (rc)
        warn("snapshot %s: it is not evaluated", error_last());
    free(path);
    if (rc) return dev_error(x->dev)[0] ? EVALUATE_FAILED : EVALUATE_BROKEN;
    int64_t whole = x->windows / x->batch * x->batch, tokens = x->windows * x->c->seq;
    double sum = sum_of(x, x->many, 0, whole, x->batch);
    if (whole < x->windows) sum += sum_of(x, x->single, whole, x->windows, 1);
    struct eval_record r = {.step = at.step,
                            .samples = at.samples,
                            .updates = at.updates,
                            .seconds = seconds,
                            .val_loss = sum / (double)tokens,
                            .unigram_entropy = data_unigram_entropy(x->o->data),
                            .tokens = tokens};
    if (dev_error(x->dev)[0])
        return fail("evaluation: the snapshot of step %lld: %s", (long long)step, dev_error(x->dev));
    if (x->o->stop && *x->o->stop) return EVALUATE_INTERRUPTED;
    evals_add(evals, &r);
    if (evals_write(x->o->dir, evals)) return EVALUATE_FAILED;
    print_result(x, &r);
    if (!x->o->keep) checkpoint_drop(x->o->dir, CHECKPOINT_WEIGHTS, step);
    return EVALUATE_DONE;
}

static enum evaluated evaluate_all(struct evaluation *x, const int64_t *steps, int count) {
    enum evaluated rc = EVALUATE_DONE;
    struct evals evals;
    if (evals_read(x->o->dir, &evals)) return EVALUATE_FAILED;
    x->all = count * x->windows;
    x->begin_s = x->printed_s = now_seconds();
    if (x->o->output) {
        char tokens[32];
        fprintf(x->o->output, "evaluating %d snapshot%s on %s tokens of held-out text\n", count,
                count > 1 ? "s" : "", format_count(tokens, x->windows * x->c->seq));
        if (x->requested > x->windows)
            fprintf(x->o->output, "eval_batches %lld would be more than there is: the text is used once\n",
                    (long long)x->c->eval_batches);
        fflush(x->o->output);  // so that the user sees it now: the first evaluation may take minutes
    }
    for (int i = 0; i < count && (rc == EVALUATE_DONE || rc == EVALUATE_BROKEN); i++) {
        enum evaluated one = evaluate_one(x, steps[i], &evals);
        if (one != EVALUATE_DONE) rc = one;
    }
    evals_free(&evals);
    return rc;
}

enum evaluated evaluate_run(const struct evaluate_options *o) {
    struct evaluation x = {.o = o, .c = o->config};
    int count;
    struct run_state state;
    run_state_read(o->dir, &state);
    if (state.phase != RUN_RUNNING) checkpoint_sweep(o->dir, CHECKPOINT_WEIGHTS, 0);
    int64_t *steps = checkpoint_steps(o->dir, CHECKPOINT_WEIGHTS, &count);
    enum evaluated rc = EVALUATE_DONE;
    if (count && data_val_tokens(o->data) <= o->config->seq) {
        rc = fail("evaluation: %s holds out %lld tokens, fewer than a window of %lld and one more",
                  o->config->data, (long long)data_val_tokens(o->data), (long long)o->config->seq);
    } else if (count) {
        rc = prepare(&x) ? EVALUATE_FAILED : evaluate_all(&x, steps, count);
        release(&x);
    }
    free(steps);
    return rc;
}
