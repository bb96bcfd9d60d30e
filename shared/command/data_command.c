// `starring data info`, `starring data tokenize` and `starring data wrap`.
#include <errno.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shared/command/commands.h"
#include "shared/core/disk.h"
#include "shared/core/error.h"
#include "shared/core/file.h"
#include "shared/core/json.h"
#include "shared/core/numbers.h"
#include "shared/core/text.h"
#include "shared/data/data.h"
#include "shared/data/data_stream.h"
#include "shared/data/vocabulary.h"
#include "shared/hf/file_kind.h"

#define DEFAULT_VOCAB (1 << 20)

// Returns the lengths of the training text's documents (data.documents): null if the data has none.
static cJSON *documents_of(const struct data_options *o) {
    struct data_options whole = *o;
    whole.whole = true;
    error_quiet(QUIET_ALL);
    struct token_source *s = data_open(&whole);
    error_quiet(QUIET_NOT);
    error_clear();
    if (!s) return cJSON_CreateNull();
    int64_t n = data_documents(s);
    double *sorted = xcalloc((unsigned long)n, sizeof *sorted), sum = 0;
    for (int64_t i = 0; i < n; i++) sum += sorted[i] = (double)data_document_tokens(s, i);
    data_close(&s);
    sort_ascending(sorted, (size_t)n);
    cJSON *doc = cJSON_CreateObject();
    json_put(doc, "count", (double)n);
    json_put(doc, "mean", sum / (double)n);
    json_put(doc, "median", sorted[n / 2]);
    json_put(doc, "p90", sorted[n * 9 / 10]);
    json_put(doc, "p99", sorted[n * 99 / 100]);
    json_put(doc, "longest", sorted[n - 1]);
    cJSON *bins = cJSON_AddArrayToObject(doc, "histogram");
    int64_t at = 0;
    for (double most = 8; at < n; most *= 2) {
        int64_t count = 0;
        double tokens = 0;
        for (; at < n && sorted[at] <= most; at++, count++) tokens += sorted[at];
        cJSON *bin = cJSON_CreateObject();
        json_put(bin, "up_to", most);
        json_put(bin, "documents", (double)count);
        json_put(bin, "tokens", tokens);
        cJSON_AddItemToArray(bins, bin);
    }
    free(sorted);
    return doc;
}

static void print_documents(const cJSON *d) {
    char text[32];
    const cJSON *bin;
    if (cJSON_IsNull(d)) return;
    double count = json_number(d, "count"), mean = json_number(d, "mean");
    printf(
        "documents         %s: mean %.0f tokens, median %.0f, 90%% up to %.0f, 99%% up to %.0f, longest %.0f\n",
        format_count(text, (int64_t)count), mean, json_number(d, "median"), json_number(d, "p90"),
        json_number(d, "p99"), json_number(d, "longest"));
    cJSON_ArrayForEach(bin, json_item(d, "histogram")) printf(
        "  up to %9.0f   %5.1f%% of them, %5.1f%% of the tokens\n", json_number(bin, "up_to"),
        100 * json_number(bin, "documents") / count, 100 * json_number(bin, "tokens") / (count * mean));
}

static int info_run(const struct topology_table *t, const struct cli_args *args) {
    (void)t;
    long vocab;
    char count[32], program[PROGRAM_WORD];
    if (args->word_count != 1) {
        fail("data info: which file? See %s data info --help", program_word(program));
        return EXIT_USAGE;
    }
    struct sidecar_summary side = sidecar_read(args->words[0]);
    if (cli_integer(args, "vocab", 1, 1 << 30, side.vocab > 0 ? side.vocab : DEFAULT_VOCAB, &vocab)) {
        free(side.tokenizer);
        return EXIT_USAGE;
    }
    struct data_options o = {.path = args->words[0], .val_fraction = 0.05, .vocab = (int32_t)vocab};
    struct token_source *s = data_open(&o);
    cJSON *documents = s ? documents_of(&o) : NULL;
    if (s && cli_get(args, "json")) {
        cJSON *doc = cJSON_CreateObject();
        cJSON_AddStringToObject(doc, "data", data_description(s));
        if (side.tokenizer) cJSON_AddStringToObject(doc, "tokenizer", side.tokenizer);
        if (side.vocab > 0) cJSON_AddNumberToObject(doc, "vocab_size", side.vocab);
        cJSON_AddNumberToObject(doc, "train_tokens", (double)data_train_tokens(s));
        cJSON_AddNumberToObject(doc, "val_tokens", (double)data_val_tokens(s));
        cJSON_AddNumberToObject(doc, "unigram_entropy", data_unigram_entropy(s));
        cJSON_AddItemReferenceToObject(doc, "documents", documents);
        json_print(stdout, doc);
        cJSON_Delete(doc);
    } else if (s) {
        printf("%s\n", data_description(s));
        if (side.tokenizer) printf("tokenizer         %s, %ld entries\n", side.tokenizer, (long)side.vocab);
        printf("training tokens   %s\n", format_count(count, data_train_tokens(s)));
        printf("held-out tokens   %s\n", format_count(count, data_val_tokens(s)));
        printf("unigram entropy   %.4f nats per token\n", data_unigram_entropy(s));
        print_documents(documents);
    }
    cJSON_Delete(documents);
    free(side.tokenizer);
    int status = s ? 0 : EXIT_RUN_FAILED;
    data_close(&s);
    return status;
}

// ---------------------------------------------------------------- writing llm.c's files
struct copying {
    FILE *in, *out;
    int64_t tokens;
    crypto_hash_sha256_state hash;  // hash of the bytes read
};

static int too_many(const char *from) {
    return fail(
        "%s: llm.c's header counts to %d tokens, these are more: split "
        "the file, --data takes a directory of .bin files",
        from, INT32_MAX);
}

// Writes the header for c->tokens tokens of `width` bytes, at the start of the file.
static int put_header(struct copying *c, int width) {
    const struct bin_format *f = &bin_formats[width == 4];
    int32_t header[BIN_HEADER_WORDS] = {f->magic, f->version, (int32_t)c->tokens};
    if (c->tokens > INT32_MAX) {
        errno = EOVERFLOW;
        return -1;
    }
    return !fseeko(c->out, 0, SEEK_SET) && fwrite(header, sizeof header, 1, c->out) == 1 ? 0 : -1;
}

// Writes the tokens of `in` after llm.c's header; their count is known only at the end. of_bytes: each byte is one, and is
// widened to `width`, 2; otherwise they have `width` bytes already.
static int copy(struct copying *c, int width, bool of_bytes) {
    unsigned char piece[1 << 16];
    uint16_t tokens[sizeof piece];
    int64_t bytes = 0;
    if (put_header(c, width)) return -1;
    for (size_t got; (got = fread(piece, 1, sizeof piece, c->in)) > 0; bytes += (int64_t)got) {
        for (size_t i = 0; of_bytes && i < got; i++) tokens[i] = piece[i];
        if (of_bytes) crypto_hash_sha256_update(&c->hash, piece, got);
        size_t written =
            of_bytes ? fwrite(tokens, sizeof *tokens, got, c->out) : fwrite(piece, 1, got, c->out);
        if (written != got) return -1;
    }
    c->tokens = of_bytes ? bytes : bytes / width;
    return ferror(c->in) ? -1 : put_header(c, width);
}

// Checks, before reading, that OUT.bin may be written and that IN's tokens fit llm.c's format.
static int check_paths(const struct cli_args *args, int width) {
    const char *from = args->words[0], *to = args->words[1];
    struct stat st = {0};
    stat(from, &st);
    if (st.st_size % width)
        return fail("%s: %lld bytes are no whole number of tokens of %d: is it another type, or cut short?",
                    from, (long long)st.st_size, width);
    if (st.st_size / width > INT32_MAX) return too_many(from);
    if (!cli_get(args, "force") && !access(to, F_OK))
        return fail("%s is there already: --force replaces it", to);
    if (same_file(from, to)) return fail("%s is the input itself: name another OUT.bin", to);
    return 0;
}

// Converts IN to OUT.bin by way of OUT.bin.part, so that a failure leaves no incomplete file.
static int convert(struct copying *c, const char *from, const char *to, int width, bool of_bytes) {
    struct new_file n;
    int rc = 0;
    crypto_hash_sha256_init(&c->hash);
    char why[FILE_WHY_MAX];
    char head[1 << 16] = {0};  // large: MosaicML's files have their header after the offsets of all samples
    int32_t magic = 0;
    c->in = file_open_stream(from, why);
    size_t got = c->in ? fread(head, 1, sizeof head, c->in) : 0;
    memcpy(&magic, head, sizeof magic);
    const struct file_kind *kind = file_kind_of_bytes(FILE_AS_DATA, head, got);
    char *what = file_kind_is_text(kind) ? NULL : file_kind_text(FILE_AS_DATA, kind, from);
    if (!c->in)
        rc = fail("%s: %s", from, why);
    else if (bin_format_of(magic))
        rc = fail("%s is a token file of llm.c already: --data reads it as it is", from);
    else if (what)
        rc = fail("%s", what);
    free(what);
    if (!rc) {
        rewind(c->in);
        bool copied = new_file_begin(&n, to, false) && (c->out = n.file) && !copy(c, width, of_bytes);
        bool empty = copied && c->tokens == 0;
        if (new_file_end(&n, copied && !empty))
            rc = empty                ? fail("%s: the file is empty", from)
                 : errno == EOVERFLOW ? too_many(from)
                                      : fail("%s -> %s: %s", from, to, strerror(errno));
    }
    if (c->in) fclose(c->in);
    return rc;
}

static int tokenize_run(const struct topology_table *t, const struct cli_args *args) {
    (void)t;
    const char *tokenizer = cli_get(args, "tokenizer");
    if (args->word_count != 2) {
        char program[PROGRAM_WORD];
        fail("data tokenize: expected IN and OUT.bin; see %s data tokenize --help", program_word(program));
        return EXIT_USAGE;
    }
    if (tokenizer && strcmp(tokenizer, "byte") != 0) {
        fail(
            "--tokenizer %s: this command makes a token of each byte; for other tokenizers:\n"
            "    experiments/tokenize.py --tokenizer DIR TEXT.txt --out TEXT.bin",
            tokenizer);
        return EXIT_USAGE;
    }
    if (check_paths(args, 1)) return EXIT_USAGE;
    const char *from = args->words[0], *to = args->words[1];
    struct copying c = {0};
    char hex[SHA256_HEX];
    unsigned char digest[crypto_hash_sha256_BYTES];
    if (convert(&c, from, to, 2, true)) return EXIT_RUN_FAILED;
    crypto_hash_sha256_final(&c.hash, digest);
    sodium_bin2hex(hex, sizeof hex, digest, sizeof digest);
    const struct byte_sidecar side = {.bin_path = to, .source = from, .bytes = c.tokens, .sha256 = hex};
    return sidecar_write_bytes(&side) ? EXIT_RUN_FAILED : 0;
}

static int wrap_run(const struct topology_table *t, const struct cli_args *args) {
    (void)t;
    const char *type = cli_get(args, "type");
    int width = !type ? 0 : !strcmp(type, "uint16") ? 2 : !strcmp(type, "uint32") ? 4 : 0;
    char program[PROGRAM_WORD];
    if (args->word_count != 2 || !width) {
        if (type && !width)
            fail("--type %s: bare tokens are uint16 or uint32", type);
        else
            fail("data wrap: expected --type uint16|uint32, IN and OUT.bin; see %s data wrap --help",
                 program_word(program));
        return EXIT_USAGE;
    }
    if (check_paths(args, width)) return EXIT_USAGE;
    const char *from = args->words[0], *to = args->words[1];
    struct copying c = {0};
    if (convert(&c, from, to, width, false)) return EXIT_RUN_FAILED;
    char *earlier = sidecar_path(to);  // the sidecar of an earlier token file with this name
    unlink(earlier);
    free(earlier);
    char count[32], *word = shell_word(to);
    printf("%s: %s tokens of %d bits; %s data info %s --vocab V checks them against a vocabulary\n", to,
           format_count(count, c.tokens), 8 * width, program_word(program), word);
    free(word);
    return 0;
}

int data_command(const struct topology_table *t, int argc, char **argv) {
    static const struct {
        const struct cli_command *command;
        const char *name;
        int (*run)(const struct topology_table *t, const struct cli_args *args);
    } all[] = {{&command_data_info, "info", info_run},
               {&command_data_tokenize, "tokenize", tokenize_run},
               {&command_data_wrap, "wrap", wrap_run}};
    for (size_t i = 0; argc > 0 && i < sizeof all / sizeof all[0]; i++)
        if (!strcmp(argv[0], all[i].name)) return cli_run(all[i].command, t, argc - 1, argv + 1, all[i].run);
    bool help = argc > 0 && cli_asks_help(argv[0]);
    FILE *f = help ? stdout : stderr;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        cli_help(f, all[i].command, t, NULL);
        fputc('\n', f);
    }
    if (!help && argc > 0) fail("data %s: expected info, tokenize or wrap", argv[0]);
    return help ? 0 : EXIT_USAGE;
}
