// starring generate: continues a prompt with trained weights.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/command/commands.h"
#include "shared/config/cli.h"
#include "shared/config/config.h"
#include "shared/core/arena.h"
#include "shared/core/error.h"
#include "shared/core/json.h"
#include "shared/core/text.h"
#include "shared/data/vocabulary.h"
#include "shared/device/device_choice.h"
#include "shared/device/device_facts.h"
#include "shared/hf/hf_dir.h"
#include "shared/hf/presets.h"
#include "shared/infer/generate.h"
#include "shared/infer/generate_input.h"
#include "shared/predict/memory_check.h"

#define DEFAULT_TOKENS      100
#define DEFAULT_TEMPERATURE 0.8
#define DEFAULT_TOP_K       40
#define DEFAULT_WINDOW      256
#define MOST_TOKENS         1000000
// Bytes added to the prediction (shared/predict/memory_need.h explains such figures).
#define HOST_ALLOWANCE (64.0 * 1048576)
#define GPU_ALLOWANCE  (64.0 * 1048576)

static const struct cli_option options[] = {
    {"model", NULL, "DIR", "run directory (its weights/), or Hugging Face directory", 0},
    {"prompt", NULL, "TEXT", "text to continue, for models whose tokens are bytes; -: standard input", 0},
    {"prompt-ids", NULL, "IDS", "token ids to continue, such as 15496,11; -: standard input", 0},
    {"tokens", NULL, "N", "append at most N tokens (100)", 0},
    {"temperature", NULL, "T", "0: always the most likely token; 1: the model's own distribution (0.8)", 0},
    {"top-k", NULL, "K", "draw from the K most likely tokens; 0: from all (40)", 0},
    {"seed", "seed", "N", "seed of the draws: the same seed gives the same text (1)", 0},
    {"window", NULL, "N", "number of tokens that the model sees: the last N of prompt and continuation", 0},
    {"ignore-eos", NULL, NULL, "continue after an end-of-text token", 0},
    {"dtype", "dtype", "D", "fp32, bf16 or fp16 (default: the weights' type)", 0},
    {"device", "device", "D", "auto, cpu, ref (slow and simple) or cuda", 0},
    {"threads", "threads", "N", "CPU threads (one per core)", 0},
    {"set", CLI_SET, "KEY=VALUE",
     "cpu.kernel; memory.check=off: start even if memory seems too small; cuda.attention, cuda.gelu", 0},
    {"json", NULL, NULL, "print one JSON document: prompt, ids, text, seed, tokens/s ..", 0},
};

static const struct cli_command command = {
    .name = "generate",
    .usage = "--model RUN|DIR --prompt TEXT [OPTIONS]",
    .summary =
        "Continues a prompt with the weights of a run or of a Hugging Face directory. If tokens are bytes, input and\n"
        "output are text. Tokens are bytes if the vocabulary has 256 to 512 entries and no tokenizer files, if the first\n"
        "256 entries of tokenizer.json are the bytes, or if the run used --tokenizer byte; later entries are special\n"
        "tokens, which print nothing. Otherwise input and output are token ids (--prompt-ids), and\n"
        "experiments/generate.py translates for models with a tokenizer. Every token is a forward pass over the\n"
        "window. By default the window is the least of the run's sequence length, the model's positions, 256, and\n"
        "the length of prompt and continuation. A full window slides, and positions count from its first token.\n"
        "Generation stops at config.json's (generation_config.json's) eos_token_id.",
    .examples =
        "  starring generate --model runs/demo/ps-sync --prompt \"hacker: \"\n"
        "  starring generate --model runs/demo/zero-2 --prompt \"hacker: \" --temperature 0 --tokens 40\n"
        "  starring generate --model gpt2/ --prompt-ids 15496,11 --json\n"
        "  experiments/generate.py --model gpt2/ --prompt \"Hello,\"\n",
    CLI_OPTIONS(options),
};

struct run {
    const struct topology_table *topologies;
    const struct cli_args *args;
    const char *model;  // as the user gave it
    struct config *config;
    struct generate_source source;
    struct model_spec spec;
    struct layout *layout;
    struct hf_reader *reader;
    struct prompt prompt;
    struct generate_options o;
    int64_t window;
    struct device *dev;
    struct stream *compute;
    struct generator *generator;
};

static int read_options(struct run *r) {
    // --set accepts any configuration key; generate uses few of them, and refuses the others.
    static const char *const known[] = {"seed",      "dtype",        "device",
                                        "threads",   "memory.check", "cuda.attention",
                                        "cuda.gelu", "cpu.kernel",   NULL};
    const struct config_override local = {"topology", "local", "generate"};
    const struct cli_args *a = r->args;
    long tokens, top_k;
    r->model = cli_get(a, "model");
    if (!r->model) return fail("generate: --model RUN|DIR is missing: it names the weights");
    if (!cli_get(a, "prompt") == !cli_get(a, "prompt-ids"))
        return fail("generate: give --prompt TEXT or --prompt-ids IDS, one of the two");
    if (cli_only_sets(
            a, known,
            "is not used by generate; cpu.kernel, memory.check, cuda.attention and cuda.gelu are") ||
        cli_integer(a, "tokens", 1, MOST_TOKENS, DEFAULT_TOKENS, &tokens) ||
        cli_integer(a, "top-k", 0, INT32_MAX, DEFAULT_TOP_K, &top_k) ||
        cli_number(a, "temperature", 0, 1000, DEFAULT_TEMPERATURE, &r->o.sample.temperature))
        return -1;
    r->config = cli_config(r->topologies, &local, 1, a);
    if (!r->config) return -1;
    r->o.count = tokens;
    r->o.sample.top_k = (int32_t)top_k;
    r->o.sample.seed = r->config->seed;
    return 0;
}

static int open_weights(struct run *r) {
    if (source_open(&r->source, r->model) || model_spec_load(r->source.dir, &r->spec) ||
        !(r->layout = model_layout_create(&r->spec, 1)) ||
        !(r->reader = hf_open(r->source.dir, &r->spec, r->layout)))
        return -1;
    source_end_by(&r->source, r->spec.eos_token);
    if (!cli_get(r->args, "dtype")) r->config->dtype = hf_dtype(r->reader);
    return 0;
}

// Refuses a text prompt: this program has no tokenizer; experiments/generate.py has one.
static int needs_tokenizer(const struct run *r, const char *text) {
    char *model = shell_word(r->model), *prompt = shell_word(text);
    if (tokenizer_present(r->source.tokenizer))
        fail(
            "--prompt: this model's tokens are not bytes (vocabulary %d): run python3 "
            "experiments/generate.py --model %s --prompt %s, or give --prompt-ids",
            r->spec.vocab, model, prompt);
    else
        fail(
            "--prompt: this model's tokens are not bytes (vocabulary %d) and %s holds no tokenizer.json: put "
            "it there and run experiments/generate.py --model %s --prompt %s, or give --prompt-ids",
            r->spec.vocab, r->source.dir, model, prompt);
    free(model);
    free(prompt);
    return -1;
}

static int read_prompt(struct run *r) {
    const char *text = cli_get(r->args, "prompt");
    if (text && !r->source.trained_on_bytes && !tokenizer_is_bytes(r->source.tokenizer, r->spec.vocab))
        return needs_tokenizer(r, text);
    if (prompt_read(&r->prompt, text, cli_get(r->args, "prompt-ids"), r->spec.vocab)) return -1;
    r->o.prompt = r->prompt.ids;
    r->o.prompt_count = r->prompt.count;
    if (cli_get(r->args, "ignore-eos")) return 0;
    r->o.end = r->source.end;
    r->o.end_count = r->source.end_count;
    return 0;
}

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static int choose_window(struct run *r) {
    // The context that the model supports, and was trained for.
    int64_t positions = model_longest_seq(&r->spec);
    long window,
        longest = (long)(positions ? least(positions, r->spec.max_positions) : r->spec.max_positions);
    int64_t whole = r->prompt.count + r->o.count, fallback = least(DEFAULT_WINDOW, longest);
    if (r->source.train_seq) fallback = least(fallback, r->source.train_seq);
    if (cli_integer(r->args, "window", 1, longest, fallback, &window)) return -1;
    if (r->prompt.count > window)
        warn(
            "the prompt has %lld tokens and the window holds %ld: the model sees the last ones only; "
            "--window N, up to %ld, is longer",
            (long long)r->prompt.count, window, longest);
    r->window = least(window, whole);
    return 0;
}

static int open_device(struct run *r) {
    const struct backend *found = device_backend(r->config);
    struct device_options d = {.threads = (int)r->config->threads,
                               .label = "generate",
                               .kernel = r->config->cpu_kernel,
                               .cuda = r->config->cuda};
    if (!found) return -1;
    if (dev_open(found, &d, &r->dev)) return fail("--device %s: cannot open it", found->name);
    r->compute = stream_create(r->dev, "compute");
    return r->compute ? 0 : fail("--device %s: cannot create a stream", found->name);
}

// The generator's memory, plus host memory for the largest unit while it is read (fp32, and rounded) and for the
// program with its libraries.
static int check_memory(const struct run *r, const struct generator_options *g) {
    size_t bytes[MEM_CLASSES], largest = 0;
    generator_predict(g, bytes);
    const struct layout *l = layout_of_model(r->layout);
    for (int u = 0; u < l->count; u++) {
        size_t n = (size_t)l->units[u].n_pad;
        if (n > largest) largest = n;
    }
    double device = (double)mem_device_bytes(bytes);
    bool on_host = dev_host_memory(r->dev);
    struct memory_need need = {.host.allowed_bytes = 6.0 * (double)largest + HOST_ALLOWANCE};
    if (on_host) need.host.predicted_bytes = device;
    if (!on_host) {
        need.gpus = 1;
        need.gpu[0] = (struct memory_sum){device, GPU_ALLOWANCE};
    }
    return memory_check(r->config, &need, "generating");
}

static int create(struct run *r) {
    struct generator_options g = {.spec = &r->spec,
                                  .layout = r->layout,
                                  .dev = r->dev,
                                  .compute = r->compute,
                                  .dtype = r->config->dtype,
                                  .window = r->window};
    if (check_memory(r, &g)) return -1;
    r->generator = generator_create(&g, r->reader);
    return r->generator ? 0 : -1;
}

// ---------------------------------------------------------------- output
// Bytes are printed unchanged, valid UTF-8 or not; tokens above 255 are special and not printed. Ids are printed in
// decimal, separated by spaces. The prompt comes first.
struct token_printer {
    FILE *f;
    bool bytes;
    bool begun;
};

static void put(struct token_printer *p, int32_t token) {
    if (!p->bytes)
        fprintf(p->f, p->begun ? " %d" : "%d", token);
    else if (token < 256)
        fputc(token, p->f);
    p->begun = true;
}

// generate_options.on_token; ctx is a token_printer. Returns non-zero if writing fails.
static int print_token(void *ctx, int32_t token) {
    struct token_printer *p = ctx;
    put(p, token);
    return fflush(p->f) ? -1 : 0;
}

// Returns the text of byte tokens (malloc'd). Invalid bytes are replaced, and NUL too, because it would end a C
// string.
static char *text_of(const int32_t *ids, int64_t n) {
    static const char replacement[] = "\xef\xbf\xbd";
    unsigned char *bytes = xcalloc((size_t)n + 1, 1);
    char *text = xcalloc((size_t)n * (sizeof replacement - 1) + 1, 1), *to = text;
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++)
        if (ids[i] < 256) bytes[count++] = (unsigned char)ids[i];
    for (int64_t i = 0; i < count;) {
        int length = bytes[i] ? text_utf8_length(bytes + i, count - i) : 0;
        const void *from = length ? (const void *)(bytes + i) : replacement;
        size_t width = length ? (size_t)length : sizeof replacement - 1;
        memcpy(to, from, width);
        to += width;
        i += length ? length : 1;
    }
    free(bytes);
    return text;
}

static void add_ids(cJSON *j, const char *name, const int32_t *ids, int64_t n) {
    cJSON *list = cJSON_AddArrayToObject(j, name);
    for (int64_t i = 0; i < n; i++) cJSON_AddItemToArray(list, cJSON_CreateNumber(ids[i]));
}

static void add_text(cJSON *j, const char *name, bool bytes, const int32_t *ids, int64_t n) {
    char *text = bytes ? text_of(ids, n) : NULL;
    if (text)
        cJSON_AddStringToObject(j, name, text);
    else
        cJSON_AddNullToObject(j, name);
    free(text);
}

// "text" and "prompt" (null for ids) have U+FFFD for bytes that are not UTF-8, because JSON cannot hold them; "ids"
// are exact.
static void print_json(const struct run *r, const int32_t *ids, int64_t count, double seconds) {
    const struct sample_options *s = &r->o.sample;
    const struct prompt *p = &r->prompt;
    const struct config *c = r->config;
    bool ended = count > 0 && is_end_token(&r->o, ids[count - 1]);
    cJSON *j = cJSON_CreateObject();
    char seed[24];
    snprintf(seed, sizeof seed, "%llu", (unsigned long long)s->seed);
    cJSON_AddStringToObject(j, "model", r->model);
    cJSON_AddStringToObject(j, "weights", r->source.dir);
    cJSON_AddStringToObject(j, "vocabulary", p->bytes ? "byte" : "ids");
    add_text(j, "prompt", p->bytes, p->ids, p->count);
    add_text(j, "text", p->bytes, ids, count);
    add_ids(j, "prompt_ids", p->ids, p->count);
    add_ids(j, "ids", ids, count);
    cJSON_AddStringToObject(j, "ended_by", ended ? "end of text" : "count");
    cJSON_AddNumberToObject(j, "temperature", s->temperature);
    cJSON_AddNumberToObject(j, "top_k", s->top_k);
    cJSON_AddRawToObject(j, "seed", seed);
    cJSON_AddNumberToObject(j, "window", (double)r->window);
    cJSON_AddStringToObject(j, "dtype", dtype_name(c->dtype));
    cJSON_AddStringToObject(j, "device", device_backend(c)->name);
    json_put_text(j, "cpu_kernel", device_cpu_kernel(c));
    cJSON_AddNumberToObject(j, "seconds", seconds);
    cJSON_AddNumberToObject(j, "tokens_per_second", seconds > 0 ? (double)count / seconds : 0);
    json_print(stdout, j);
    cJSON_Delete(j);
}

static int continue_prompt(struct run *r) {
    const struct config *c = r->config;
    bool json = cli_get(r->args, "json") != NULL;
    struct token_printer printer = {.f = stdout, .bytes = r->prompt.bytes};
    int32_t *ids = xcalloc((size_t)r->o.count, sizeof *ids);
    if (!json) {
        for (int64_t i = 0; i < r->prompt.count; i++) put(&printer, r->prompt.ids[i]);
        fflush(stdout);
        r->o.on_token = print_token;
        r->o.ctx = &printer;
    }
    double start = now_seconds();
    int64_t made = generate(r->generator, &r->o, ids);
    double seconds = now_seconds() - start;
    int said = 0;
    device_notes_print(r->dev, &said);
    if (!json) fputc('\n', stdout);
    const char *way = device_cpu_kernel(c);
    if (json && made >= 0) print_json(r, ids, made, seconds);
    if (!json && made >= 0)
        info("%lld tokens in %.2f s (%.1f tokens/s)%s, %s on %s%s%s, seed %llu", (long long)made, seconds,
             (double)made / seconds,
             made > 0 && is_end_token(&r->o, ids[made - 1]) ? ", ended by the model" : "",
             dtype_name(c->dtype), device_backend(c)->name, way ? " by " : "", way ? way : "",
             (unsigned long long)r->o.sample.seed);
    free(ids);
    return made < 0 ? -1 : 0;
}

static int run(const struct topology_table *t, const struct cli_args *a) {
    struct run r = {.topologies = t, .args = a};
    int status = EXIT_USAGE;
    if (!read_options(&r) && !open_weights(&r)) {
        device_resolve(r.config);
        if (device_backend(r.config) && !read_prompt(&r) && !choose_window(&r))
            status = open_device(&r) || create(&r) || continue_prompt(&r) ? EXIT_RUN_FAILED : 0;
    }
    generator_destroy(&r.generator);
    if (r.compute) stream_destroy(&r.compute);
    if (r.dev) dev_close(&r.dev);
    prompt_free(&r.prompt);
    if (r.reader) hf_close(&r.reader);
    if (r.layout) layout_destroy(&r.layout);
    source_close(&r.source);
    config_destroy(&r.config);
    return status;
}

int generate_command(const struct topology_table *t, int argc, char **argv) {
    return cli_run(&command, t, argc, argv, run);
}
