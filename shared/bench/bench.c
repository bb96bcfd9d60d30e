// The frame of the benches: figures as text, the table, one bench from set_up to tear_down, the command line, and
// statistics of the measurements.
#include "shared/bench/bench.h"

#include <linux/magic.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/vfs.h>

#include "shared/core/error.h"
#include "shared/core/numbers.h"
#include "shared/core/text.h"
#include "shared/predict/memory_limits.h"

// ---------------------------------------------------------------- figures as text
// Where a text's figures are looked up, in this order.
struct scope {
    const cJSON *objects[3];
    const char *key;  // {@}
};

// Returns the figure at one of the paths "a.b|c" of `length` characters, or NULL.
static const cJSON *find(const struct scope *s, const char *paths, size_t length) {
    char copy[128], *rest = copy;
    snprintf(copy, sizeof copy, "%.*s", (int)length, paths);
    for (char *path; (path = strsep(&rest, "|"));)
        for (int i = 0; i < 3; i++) {
            const cJSON *o = s->objects[i];
            char name[128], *names = name;
            snprintf(name, sizeof name, "%s", path);
            for (char *key; o && (key = strsep(&names, "."));) o = json_item(o, key);
            if (o && !cJSON_IsNull(o)) return o;
        }
    return NULL;
}

static double scale_of(char unit) {
    static const struct {
        char unit;
        double scale;
    } scales[] = {{'M', 1e-6}, {'G', 1e-9}, {'T', 1e-12}, {'m', 1e3}, {'u', 1e6}, {'%', 100}};
    for (size_t i = 0; i < sizeof scales / sizeof *scales; i++)
        if (scales[i].unit == unit) return scales[i].scale;
    return 1;
}

// how: ":.1G}", "?yes:no}" or "}", as in struct bench_line.
static void print_figure(FILE *f, const cJSON *x, const char *how) {
    char bytes[24];
    if (*how == '?') {
        const char *no = strchr(how, ':'), *from = cJSON_IsTrue(x) ? how + 1 : no + 1;
        fprintf(f, "%.*s", (int)strcspn(from, ":}"), from);
    } else if (cJSON_IsString(x)) {
        fputs(x->valuestring, f);
    } else if (how[1] == 'B') {
        fputs(format_bytes(bytes, x->valuedouble), f);
    } else if (how[1] == 's') {
        fputs(x->valuedouble == 1 ? "" : "s", f);
    } else {
        bool decimals = how[1] == '.';
        fprintf(f, "%.*f", decimals ? how[2] - '0' : 0,
                x->valuedouble * scale_of(decimals ? how[3] : how[1]));
    }
}

// Returns the text with its figures, which the caller frees; NULL if one of them is missing.
static char *text_of(const char *text, const struct scope *s) {
    char *out = NULL;
    size_t size;
    FILE *f = open_memstream(&out, &size);
    bool all = f != NULL;
    for (const char *p = text; all && *p; p++) {
        if (*p != '{') {
            fputc(*p, f);
            continue;
        }
        size_t length = strcspn(p + 1, "?:}");
        const cJSON *x = find(s, p + 1, length);
        if (p[1] == '@')
            fputs(s->key, f);
        else if (x)
            print_figure(f, x, p + 1 + length);
        else
            all = false;
        p = strchr(p, '}');
    }
    if (f) fclose(f);
    if (!all) free(out);
    return all ? out : NULL;
}

// ---------------------------------------------------------------- the table
#define NUMBER_WIDTH 8   // the least width of a column of numbers
#define TEXT_WIDTH   14  // the least width of a column that is aligned left

static void print_lines(const struct bench_line *l, const struct scope *s) {
    for (; l && l->text; l++) {
        char *text = text_of(l->text, s);
        if (text && l->label)
            printf("%-14s %s\n", l->label, text);
        else if (text)
            printf("# %s\n", text);
        free(text);
    }
}

static bool is_left(const struct bench_column *c) { return *c->text == '<'; }

// Prints a cell; nothing follows the last column.
static void print_cell(const struct bench_column *c, int width, const char *text) {
    printf(" %*s", !is_left(c) ? width : c[1].title ? -width : 0, text);
}

// Prints a line's cells, or only updates the column widths for them.
static void put_line(struct bench_run *r, const struct scope *s, bool print) {
    if (print) putchar(' ');
    for (int i = 0; r->bench->columns[i].title; i++) {
        const struct bench_column *c = &r->bench->columns[i];
        char *text = text_of(c->text + is_left(c), s);
        if (print)
            print_cell(c, r->widths[i], text ? text : "-");
        else if (text && (int)strlen(text) > r->widths[i])
            r->widths[i] = (int)strlen(text);
        free(text);
    }
    if (print) putchar('\n');
}

static void put_lines_of(struct bench_run *r, const cJSON *row, bool print) {
    const cJSON *member, *lines = r->bench->each ? json_item(row, r->bench->each) : NULL;
    if (!r->bench->columns) return;
    if (!r->bench->each) put_line(r, &(struct scope){{row, r->document}, row->string}, print);
    cJSON_ArrayForEach(member, lines)
        put_line(r, &(struct scope){{member, row, r->document}, member->string}, print);
}

static void print_titles(const struct bench_run *r) {
    bool groups = false, units = false;
    int ahead = 0;  // width of the columns since the last group's title
    for (const struct bench_column *c = r->bench->columns; c->title; c++) {
        groups |= strchr(c->title, '|') != NULL;
        units |= c->unit != NULL;
    }
    for (int line = groups ? 0 : 1; line < (units ? 3 : 2); line++) {
        putchar('#');
        for (int i = 0; r->bench->columns[i].title; i++) {
            const struct bench_column *c = &r->bench->columns[i];
            const char *bar = strchr(c->title, '|');
            if (line == 1) print_cell(c, r->widths[i], bar ? bar + 1 : c->title);
            if (line == 2) print_cell(c, r->widths[i], c->unit ? c->unit : "");
            if (line > 0) continue;
            if (bar) ahead -= printf("%*s %.*s", ahead, "", (int)(bar - c->title), c->title);
            ahead += r->widths[i] + 1;
        }
        putchar('\n');
    }
}

static void print_head(struct bench_run *r) {
    const struct bench_column *columns = r->bench->columns;
    int count = 0;
    while (columns && columns[count].title) count++;
    r->widths = xcalloc((unsigned long)count + 1, sizeof *r->widths);
    for (int i = 0; i < count; i++) {
        const char *bar = strchr(columns[i].title, '|');
        size_t title = strlen(bar ? bar + 1 : columns[i].title),
               unit = columns[i].unit ? strlen(columns[i].unit) : 0;
        r->widths[i] = (int)(title > unit ? title : unit);
        int least = is_left(&columns[i]) ? TEXT_WIDTH : NUMBER_WIDTH;
        if (r->widths[i] < least) r->widths[i] = least;
    }
    for (int i = 0; i < r->pending_count; i++) put_lines_of(r, r->pending[i], false);
    print_lines(r->bench->head, &(struct scope){{r->document}, ""});
    if (columns) print_titles(r);
}

void bench_print_rows(struct bench_run *r) {
    bool print = !r->json && !r->silent;
    if (print && !r->widths) print_head(r);
    for (int i = 0; i < r->pending_count && print; i++) {
        put_lines_of(r, r->pending[i], true);
        print_lines(r->bench->below, &(struct scope){{r->pending[i], r->document}, ""});
    }
    fflush(stdout);
    r->pending_count = 0;
}

cJSON *bench_row(struct bench_run *r, const char *key) {
    cJSON *row = cJSON_CreateObject(), *list = cJSON_GetObjectItem(r->document, r->bench->list);
    if (!key && !list) list = cJSON_AddArrayToObject(r->document, r->bench->list);
    if (key)
        cJSON_AddItemToObject(r->document, key, row);
    else
        cJSON_AddItemToArray(list, row);
    r->pending = xrealloc(r->pending, ((unsigned long)r->pending_count + 1) * sizeof *r->pending);
    r->pending[r->pending_count++] = row;
    return row;
}

void bench_put(cJSON *o, const struct bench_cell *c) {
    for (; c->key; c++) {
        if (c->kind == BENCH_NUMBER) json_put(o, c->key, c->number);
        if (c->kind == BENCH_TEXT) json_put_text(o, c->key, c->text);
        if (c->kind == BENCH_FLAG) cJSON_AddBoolToObject(o, c->key, c->number != 0);
    }
}

// Removes the figures that are only for the table.
static void strip(cJSON *o) {
    for (cJSON *x = o->child, *next; x; x = next) {
        next = x->next;
        if (x->string && *x->string == '#')
            cJSON_Delete(cJSON_DetachItemViaPointer(o, x));
        else
            strip(x);
    }
}

// ---------------------------------------------------------------- one bench
// Returns the exit status, or BENCH_END.
static int measure(struct bench_run *r) {
    const struct bench *b = r->bench;
    int status = b->set_up(r);
    for (r->at = 0; !status && !(status = b->begin ? b->begin(r) : r->at ? BENCH_END : 0); r->at++) {
        for (struct bench_series *s = r->series; s; s = s->next) s->count = 0;
        for (r->round = -b->warm_up; r->round < r->rounds && !status; r->round++) status = b->round(r);
        if (!status) status = b->rows(r);
        if (!b->rows_last || status) bench_print_rows(r);
    }
    if (status != BENCH_END || !r->at) return status;  // set_up has failed, or has done all the work
    status = b->finish ? b->finish(r) : 0;
    if (r->silent) return status;
    bench_print_rows(r);
    if (r->json) {
        strip(r->document);
        json_print(stdout, r->document);
    } else {
        print_lines(b->foot, &(struct scope){{r->document}, ""});
    }
    return status;
}

static const char *name_of(const struct bench *b) { return b->command.name + strlen("bench "); }

const char *const bench_dtypes[DT_COUNT] = {"fp32", "bf16", "fp16", "fp64", "int64", "uint8"};

// Stores a whole number, or an enum, in the option's member.
static void store(struct bench_run *r, const struct bench_option *o, int64_t x) {
    void *member = (char *)r->state + o->at;
    if (o->bytes == sizeof(int))
        *(int *)member = (int)x;
    else
        *(int64_t *)member = x;
}

static int read_option(struct bench_run *r, const struct bench_option *o) {
    const char *text = cli_get(r->args, o->name);
    long x = o->otherwise;
    size_t size;
    switch (o->kind) {
        case BENCH_IS_INTEGER:
            if (cli_integer(r->args, o->name, o->low, o->high, o->otherwise, &x)) return -1;
            break;
        case BENCH_IS_SIZE:
            if (cli_bytes(r->args, o->name, (size_t)o->otherwise, &size)) return -1;
            x = (long)size;
            break;
        case BENCH_IS_CHOICE:
            if (text && (x = bench_choice(r->args, o->name, o->words, (int)o->high)) < 0) return -1;
            break;
        case BENCH_IS_STRING:
            *(const char **)((char *)r->state + o->at) = text ? text : o->text;
            return 0;
        case BENCH_ASKED:
            return 0;
    }
    store(r, o, x);
    return 0;
}

static int read_options(struct bench_run *r) {
    int rc = 0;
    for (size_t i = 0; i < r->bench->option_count && !rc; i++) rc = read_option(r, &r->bench->options[i]);
    return rc;
}

static int run(const struct bench *b, const struct topology_table *t, const struct cli_args *a) {
    long rounds = 1;
    if (b->rounds && cli_integer(a, "rounds", 1, BENCH_ROUNDS_MOST, b->rounds, &rounds)) return EXIT_USAGE;
    struct bench_run r = {.bench = b,
                          .topologies = t,
                          .args = a,
                          .rounds = (int)rounds,
                          .json = cli_get(a, "json") != NULL,
                          .document = cJSON_CreateObject()};
    r.state = xcalloc(1, b->state_bytes);
    cJSON_AddStringToObject(r.document, "bench", name_of(b));
    if (b->rounds) json_put(r.document, "rounds", r.rounds);
    int status = read_options(&r) ? EXIT_USAGE : measure(&r);
    b->tear_down(&r);
    if (status == BENCH_END) status = 0;
    for (struct bench_series *s = r.series; s; s = s->next) free(s->values);
    free(r.state);
    free(r.pending);
    free(r.widths);
    cJSON_Delete(r.document);
    return status;
}

// ---------------------------------------------------------------- the command line
// Benches of earlier versions, and what replaces them.
static const struct {
    const char *name, *instead;
} gone[] = {
    {"tune",
     "tables of measured products were removed: each product takes the algorithm that cuBLASLt names first; starring bench kernels "
     "--device cuda times them"}};

char *bench_names(const struct bench *const *all, int count) {
    char *names = xstrdup(name_of(all[0]));
    for (int i = 1; i < count; i++) text_add(&names, " | %s", name_of(all[i]));
    return names;
}

// Returns the option's sentence of --help, which the caller frees: with the default, unless the help has it.
static char *help_of(const struct bench_option *o) {
    static const char units[] = "KMG";
    int64_t size = o->otherwise, unit = -1;
    if (o->kind == BENCH_IS_STRING && o->text) return xasprintf("%s (%s)", o->help, o->text);
    if (o->kind == BENCH_IS_CHOICE) return xasprintf("%s (%s)", o->help, o->words[o->otherwise]);
    if (o->otherwise <= 0) return o->help ? xstrdup(o->help) : NULL;
    for (; o->kind == BENCH_IS_SIZE && size % 1024 == 0; size /= 1024) unit++;
    return xasprintf("%s (%lld%.*s)", o->help, (long long)size, unit >= 0, unit >= 0 ? units + unit : "");
}

// Runs the bench with its own options and the frame's.
static int run_with_options(const struct bench *b, const struct topology_table *t, int argc, char **argv) {
    struct cli_command command = b->command;
    size_t count = 0;
    struct cli_option *options = xcalloc(b->option_count + 2, sizeof *options);
    for (; count < b->option_count; count++) {
        const struct bench_option *o = &b->options[count];
        options[count] = (struct cli_option){o->name, o->path, o->metavar, help_of(o), 0};
    }
    char *rounds = xasprintf("measured rounds%s; medians are printed (%d)",
                             b->warm_up ? ", after one that is not counted" : "", b->rounds);
    if (b->rounds) options[count++] = (struct cli_option){"rounds", NULL, "N", rounds, 0};
    options[count++] =
        (struct cli_option){"json", NULL, NULL, "print one JSON document instead of the table", 0};
    command.options = options;
    command.option_count = count;
    struct cli_args args;
    enum cli_outcome outcome = cli_parse(&command, t, argc, argv, &args);
    int status = outcome == CLI_RUN ? run(b, t, &args) : outcome == CLI_HELP_SHOWN ? 0 : EXIT_USAGE;
    cli_args_free(&args);
    for (size_t i = 0; i < b->option_count; i++) free((char *)options[i].help);
    free(options);
    free(rounds);
    return status;
}

int bench_command(const struct bench *const *all, int count, const struct topology_table *t, int argc,
                  char **argv) {
    const char *word = argc > 0 ? argv[0] : "";
    for (int i = 0; i < count; i++)
        if (!strcmp(word, name_of(all[i]))) return run_with_options(all[i], t, argc - 1, argv + 1);
    for (size_t i = 0; i < sizeof gone / sizeof *gone; i++)
        if (!strcmp(word, gone[i].name)) return fail("bench %s: %s", word, gone[i].instead), EXIT_USAGE;
    bool help = cli_asks_help(word);
    FILE *f = help ? stdout : stderr;
    char *names = bench_names(all, count), *usage = xasprintf("starring bench %s [OPTIONS]\n\n", names);
    cli_print(f, usage);
    free(usage);
    free(names);
    for (int i = 0; i < count; i++) fprintf(f, "  %-11s %s\n", name_of(all[i]), all[i]->about);
    cli_print(f,
              "\nExamples:\n"
              "  starring bench step --model gpt2-124m --batch 4 --seq 256 --dtype bf16\n"
              "  starring bench adam\n"
              "  starring bench ps --min-bytes 1M --max-bytes 1M\n");
    if (!help) fail("bench%s%s: expected one of those above", *word ? " " : "", word);
    return help ? 0 : EXIT_USAGE;
}

int bench_choice(const struct cli_args *a, const char *option, const char *const *words, int count) {
    const char *value = cli_get(a, option);
    char expected[80] = "";
    for (int i = 0, n = 0; i < count; i++) {
        if (!value || !strcmp(value, words[i])) return i;
        n += snprintf(expected + n, sizeof expected - (size_t)n, "%s%s", i ? ", " : "", words[i]);
    }
    return fail("--%s %s: expected one of %s", option, value, expected);
}

int bench_check_memory(const struct memory_limit *limit, double need_bytes, const char *what,
                       const char *advice) {
    struct memory_limit here;
    if (!limit && memory_limit_read("", &here)) return 0;
    if (!limit) limit = &here;
    if (need_bytes <= limit->free_bytes) return 0;
    return fail("%s %.1f GiB of memory, %.1f GiB are left (%s): %s", what, need_bytes / 0x1p30,
                limit->free_bytes / 0x1p30, limit->name, advice);
}

// ---------------------------------------------------------------- measurements
void bench_series_add(struct bench_series *s, double value) {
    if (s->count == s->capacity) {
        s->capacity = s->capacity ? 2 * s->capacity : 16;
        s->values = xrealloc(s->values, (unsigned long)s->capacity * sizeof *s->values);
    }
    s->values[s->count++] = value;
}

void bench_series_free(struct bench_series *s) {
    free(s->values);
    *s = (struct bench_series){0};
}

void bench_measured(struct bench_run *r, struct bench_series *s, double value) {
    if (r->round < 0) return;
    if (!s->capacity) {
        s->next = r->series;
        r->series = s;
    }
    bench_series_add(s, value);
}

double bench_series_quantile(const struct bench_series *s, double share) {
    if (!s->count) return 0;
    double *v = xcalloc((unsigned long)s->count, sizeof *v);
    memcpy(v, s->values, (size_t)s->count * sizeof *v);
    sort_ascending(v, (size_t)s->count);
    int at = (int)ceil(share * s->count) - 1;
    double value = v[at < 0 ? 0 : at];
    free(v);
    return value;
}

double bench_series_median(const struct bench_series *s) {
    if (!s->count) return 0;
    double *v = xcalloc((unsigned long)s->count, sizeof *v);
    memcpy(v, s->values, (size_t)s->count * sizeof *v);
    double value = median(v, s->count);
    free(v);
    return value;
}

double bench_series_spread(const struct bench_series *s) {
    double range = bench_series_quantile(s, 1) - bench_series_quantile(s, 0);
    return bench_ratio(range, bench_series_median(s));
}

double bench_series_ratio(const struct bench_series *a, const struct bench_series *b) {
    struct bench_series ratios = {0};
    for (int i = 0; i < a->count && i < b->count; i++)
        bench_series_add(&ratios, bench_ratio(a->values[i], b->values[i]));
    double value = bench_series_median(&ratios);
    bench_series_free(&ratios);
    return value;
}

// ---------------------------------------------------------------- disks
const char *file_system_of(const char *dir, char text[FILE_SYSTEM_BYTES]) {
    static const struct {
        long magic;
        const char *name;
    } known[] = {{EXT4_SUPER_MAGIC, "ext4"},   {XFS_SUPER_MAGIC, "xfs"},
                 {BTRFS_SUPER_MAGIC, "btrfs"}, {OVERLAYFS_SUPER_MAGIC, "overlay"},
                 {TMPFS_MAGIC, "tmpfs"},       {NFS_SUPER_MAGIC, "nfs"},
                 {FUSE_SUPER_MAGIC, "fuse"},   {V9FS_MAGIC, "9p"},
                 {F2FS_SUPER_MAGIC, "f2fs"},   {0x2fc12fc1, "zfs"},
                 {0x0bd00bd0, "lustre"}};
    struct statfs fs;
    if (statfs(dir, &fs)) {
        snprintf(text, FILE_SYSTEM_BYTES, "unknown");
        return text;
    }
    snprintf(text, FILE_SYSTEM_BYTES, "0x%lx", (unsigned long)fs.f_type);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if ((long)fs.f_type == known[i].magic) snprintf(text, FILE_SYSTEM_BYTES, "%s", known[i].name);
    return text;
}
