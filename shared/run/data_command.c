#include "shared/run/data_command.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shared/core/error.h"
#include "shared/io/data.h"
#include "shared/run/commands.h"
#include "shared/run/progress.h"

#define BIN_MAGIC        20240520  // llm.c, dev/data/data_common.py: write_datafile, gpt-2
#define BIN_MAGIC_32     20240801  // the same for vocabularies over 65536
#define BIN_VERSION      1
#define BIN_HEADER_WORDS 256

static int info_run(const struct cli_args *args) {
    long vocab;
    char count[32];
    if (args->word_count != 1) {
        fail("data info: which file? See starring data info --help");
        return EXIT_USAGE;
    }
    if (cli_integer(args, "vocab", 1, 1 << 30, 131072, &vocab)) return EXIT_USAGE;
    struct data_options o = {.path = args->words[0], .val_fraction = 0.05, .vocab = (int32_t)vocab};
    struct token_source *s = data_open(&o);
    if (!s) return EXIT_RUN_FAILED;
    if (cli_get(args, "json")) {
        cJSON *doc = cJSON_CreateObject();
        cJSON_AddStringToObject(doc, "data", data_description(s));
        cJSON_AddNumberToObject(doc, "train_tokens", (double)data_train_tokens(s));
        cJSON_AddNumberToObject(doc, "val_tokens", (double)data_val_tokens(s));
        cJSON_AddNumberToObject(doc, "unigram_entropy", data_unigram_entropy(s));
        char *text = cJSON_Print(doc);
        puts(text);
        free(text);
        cJSON_Delete(doc);
    } else {
        printf("%s\n", data_description(s));
        printf("training tokens   %s\n", format_count(count, data_train_tokens(s)));
        printf("held-out tokens   %s\n", format_count(count, data_val_tokens(s)));
        printf("unigram entropy   %.4f nats per token\n", data_unigram_entropy(s));
    }
    data_close(&s);
    return 0;
}

// Bytes of `in` as uint16 tokens after llm.c's header, whose count is known only at the end.
static int copy_tokens(FILE *in, FILE *out) {
    int32_t header[BIN_HEADER_WORDS] = {BIN_MAGIC, BIN_VERSION};
    unsigned char bytes[1 << 16];
    uint16_t tokens[1 << 16];
    int64_t count = 0;
    if (fwrite(header, sizeof header, 1, out) != 1) return -1;
    for (size_t got; (got = fread(bytes, 1, sizeof bytes, in)) > 0; count += (int64_t)got) {
        for (size_t i = 0; i < got; i++) tokens[i] = bytes[i];
        if (fwrite(tokens, sizeof *tokens, got, out) != got) return -1;
    }
    if (ferror(in)) return -1;
    if (count > INT32_MAX) {
        errno = EFBIG;
        return -1;
    }
    header[2] = (int32_t)count;
    rewind(out);
    return fwrite(header, sizeof header, 1, out) == 1 ? 0 : -1;
}

static bool same_file(const char *a, const char *b) {
    struct stat x, y;
    return !stat(a, &x) && !stat(b, &y) && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

static bool is_token_file(FILE *f) {
    int32_t magic = 0;
    size_t n = fread(&magic, sizeof magic, 1, f);
    rewind(f);
    return n == 1 && (magic == BIN_MAGIC || magic == BIN_MAGIC_32);
}

static int tokenize_run(const struct cli_args *args) {
    const char *tokenizer = cli_get(args, "tokenizer");
    if (args->word_count != 2) {
        fail("data tokenize: expected IN and OUT.bin; see starring data tokenize --help");
        return EXIT_USAGE;
    }
    if (tokenizer && strcmp(tokenizer, "byte") != 0) {
        fail("--tokenizer %s: this version knows byte alone", tokenizer);
        return EXIT_USAGE;
    }
    const char *from = args->words[0], *to = args->words[1];
    if (!cli_get(args, "force") && !access(to, F_OK)) {
        fail("%s is there already: --force replaces it", to);
        return EXIT_USAGE;
    }
    if (same_file(from, to)) {
        fail("%s is the text itself: name another OUT.bin", to);
        return EXIT_USAGE;
    }
    char *part = xasprintf("%s.part", to);
    FILE *in = fopen(from, "rb"), *out = in ? fopen(part, "wb") : NULL;
    int rc = 0;
    if (!in)
        rc = fail("%s: %s", from, strerror(errno));
    else if (is_token_file(in))
        rc = fail("%s is a token file of llm.c already: --data reads it as it is", from);
    else if (!out || copy_tokens(in, out))
        rc = fail("%s -> %s: %s", from, part, strerror(errno));
    if (in) fclose(in);
    if (out && fclose(out) && !rc) rc = fail("%s: %s", part, strerror(errno));
    if (!rc && rename(part, to)) rc = fail("%s: %s", to, strerror(errno));
    if (rc && out) unlink(part);
    free(part);
    return rc ? EXIT_RUN_FAILED : 0;
}

int data_command(int argc, char **argv) {
    static const struct {
        const struct cli_command *command;
        const char *name;
        int (*run)(const struct cli_args *args);
    } all[] = {{&command_data_info, "info", info_run}, {&command_data_tokenize, "tokenize", tokenize_run}};
    for (size_t i = 0; argc > 0 && i < sizeof all / sizeof all[0]; i++) {
        if (strcmp(argv[0], all[i].name) != 0) continue;
        struct cli_args args;
        enum cli_outcome outcome = cli_parse(all[i].command, argc - 1, argv + 1, &args);
        int status = outcome == CLI_HELP_SHOWN ? 0 : outcome == CLI_WRONG ? EXIT_USAGE : all[i].run(&args);
        cli_args_free(&args);
        return status;
    }
    bool help = argc > 0 && (!strcmp(argv[0], "--help") || !strcmp(argv[0], "-h"));
    FILE *f = help ? stdout : stderr;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        cli_help(f, all[i].command);
        fputc('\n', f);
    }
    if (!help && argc > 0) fail("data %s: expected info or tokenize", argv[0]);
    return help ? 0 : EXIT_USAGE;
}
