// The benches as one command, the parsing of their options, and statistics of the measurements.
#include "shared/bench/bench.h"

#include <linux/magic.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/vfs.h>

#include "shared/core/error.h"
#include "shared/core/numbers.h"

static const char *name_of(const struct bench_program *b) { return b->command->name + strlen("bench "); }

char *bench_names(const struct bench_program *const *all, int count) {
    char *names = xstrdup(name_of(all[0]));
    for (int i = 1; i < count; i++) {
        char *more = xasprintf("%s | %s", names, name_of(all[i]));
        free(names);
        names = more;
    }
    return names;
}

// Benches of earlier versions, and what replaces them.
static const struct {
    const char *name, *instead;
} gone[] = {
    {"tune",
     "tables of measured products have gone: each product takes the algorithm that cuBLASLt names first; starring bench kernels "
     "--device cuda times them"}};

int bench_command(const struct bench_program *const *all, int count, const struct topology_table *t, int argc,
                  char **argv) {
    const char *word = argc > 0 ? argv[0] : "";
    for (int i = 0; i < count; i++)
        if (!strcmp(word, name_of(all[i])))
            return cli_run(all[i]->command, t, argc - 1, argv + 1, all[i]->run);
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

// ---------------------------------------------------------------- the command line
int bench_word(const struct cli_args *a, const char *option, const char *const *words, int count) {
    const char *value = cli_get(a, option);
    char expected[80] = "";
    for (int i = 0, n = 0; i < count; i++) {
        if (!value || !strcmp(value, words[i])) return i;
        n += snprintf(expected + n, sizeof expected - (size_t)n, "%s%s", i ? ", " : "", words[i]);
    }
    return fail("--%s %s: expected one of %s", option, value, expected);
}

const struct backend *bench_backend(const struct cli_args *a) {
    static const char *const words[] = {"auto", "cpu", "cuda"};
    const char *why = NULL;
    int device = bench_word(a, "device", words, 3);
    if (device < 0) return NULL;
    const struct backend *b = backend_find(words[device ? device : 2], &why);
    if (!b && !device) b = backend_find("cpu", &why);
    if (!b) fail("--device %s: %s", words[device], why);
    return b;
}

int bench_dtype(const struct cli_args *a, enum dtype otherwise, enum dtype *out) {
    const char *text = cli_get(a, "dtype"), *name = text ? config_dtype_name(text) : NULL;
    *out = otherwise;
    for (enum dtype t = DT_F32; name && t <= DT_F16; t++) {
        if (!strcmp(name, dtype_name(t))) return *out = t, 0;
    }
    return text ? fail("--dtype %s: expected one of fp32, bf16, fp16", text) : 0;
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
