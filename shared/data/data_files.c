// The files that a data path names, in the order of their names; training files are separated from held-out ones.
#include "shared/data/data_stream.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <glob.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "shared/core/error.h"
#include "shared/core/file.h"
#include "shared/core/text.h"
#include "shared/hf/file_kind.h"

// Extensions of a directory's files that are read, as text or as tokens; other files are ignored.
static const struct {
    const char *ending;
    bool tokens;
} endings[] = {{".txt", false}, {".tokens", false}, {".raw", false}, {".bin", true}};
#define ENDINGS (sizeof endings / sizeof *endings)

// Extensions of data that is not read. If both kinds are in a directory, it is unclear which are meant.
static const char *const unread[] = {".jsonl",   ".parquet", ".arrow",    ".npy",      ".txt.gz",
                                     ".txt.zst", ".txt.xz",  ".txt.bz2",  ".bin.gz",   ".bin.zst",
                                     ".bin.xz",  ".bin.bz2", ".jsonl.gz", ".jsonl.zst"};

// Words of a name, separated by anything but letters, that state a file's purpose.
enum purpose { FOR_ANYTHING, FOR_TRAINING, FOR_EVALUATION, FOR_TEST };
static const struct {
    const char *word;
    enum purpose purpose;
} words[] = {{"train", FOR_TRAINING},   {"training", FOR_TRAINING},     {"val", FOR_EVALUATION},
             {"valid", FOR_EVALUATION}, {"validation", FOR_EVALUATION}, {"dev", FOR_EVALUATION},
             {"eval", FOR_EVALUATION},  {"evaluation", FOR_EVALUATION}, {"heldout", FOR_EVALUATION},
             {"test", FOR_TEST}};

static const char *base_of(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static enum purpose purpose_of_name(const char *name, size_t length) {
    enum purpose found = FOR_ANYTHING;
    for (size_t at = 0, n; at < length; at += n ? n : 1) {
        for (n = 0; at + n < length && isalpha((unsigned char)name[at + n]);) n++;
        for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
            if (strlen(words[i].word) != n || strncasecmp(words[i].word, name + at, n) != 0) continue;
            if (found && found != words[i].purpose) return FOR_ANYTHING;  // the name has two purposes
            found = words[i].purpose;
        }
    }
    return found;
}

// Decides by the file's name; if that says nothing, by its directory's name (a pattern may match several directories).
static enum purpose purpose_of(const char *path) {
    const char *base = base_of(path), *folder = base > path ? base - 1 : path;
    enum purpose p = purpose_of_name(base, strlen(base));
    while (folder > path && folder[-1] != '/') folder--;
    return p || base == path ? p : purpose_of_name(folder, (size_t)(base - 1 - folder));
}

// ---------------------------------------------------------------- finding
static void add(struct data_files *f, const char *path) {
    f->paths = xrealloc(f->paths, sizeof *f->paths * (unsigned long)(f->count + 1));
    f->paths[f->count++] = xstrdup(path);
}

static void drop(struct data_files *f, int i) {
    free(f->paths[i]);
    memmove(f->paths + i, f->paths + i + 1, sizeof *f->paths * (size_t)(--f->count - i));
}

static int by_text(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static bool has(const struct data_files *f, const char *path) {
    for (int i = 0; i < f->count; i++)
        if (!strcmp(f->paths[i], path)) return true;
    return false;
}

// Returns whether the file only describes a data file next to it: a sidecar, or an index.
static bool is_beside(const struct data_files *f, const char *path) {
    const char *dot = strrchr(path, '.');
    if (!dot || (strcmp(dot, ".json") && strcmp(dot, ".idx"))) return false;
    char *of = xasprintf(dot[1] == 'j' ? "%.*s" : "%.*s.bin", (int)(dot - path), path);
    bool yes = has(f, of);
    free(of);
    return yes;
}

// Returns the end of the alternative that begins at `at` in a brace: its comma or the closing brace. NULL: the brace is
// not closed.
static const char *alternative_end(const char *at) {
    for (int depth = 0; *at; at++) {
        if (*at == '\\' && at[1])
            at++;
        else if (!depth && (*at == ',' || *at == '}'))
            return at;
        else
            depth += (*at == '{') - (*at == '}');
    }
    return NULL;
}

// glob(3) silently omits an alternative of a brace that matches no file, so each alternative is searched
// separately.
static int find_each(struct data_files *f, const char *pattern, const char *path) {
    const char *brace = pattern, *end;
    while (*brace && *brace != '{') brace += *brace == '\\' && brace[1] ? 2 : 1;
    const char *last = *brace ? alternative_end(brace + 1) : NULL;
    while (last && *last == ',') last = alternative_end(last + 1);
    if (last) {
        int rc = 0;
        for (const char *at = brace + 1; !rc && at <= last; at = end + 1) {
            end = alternative_end(at);
            char *one =
                xasprintf("%.*s%.*s%s", (int)(brace - pattern), pattern, (int)(end - at), at, last + 1);
            rc = find_each(f, one, path);
            free(one);
        }
        return rc;
    }
    glob_t found;
    struct stat st;
    int files = 0, rc = glob(pattern, GLOB_TILDE, NULL, &found);
    for (size_t i = 0; rc == 0 && i < found.gl_pathc; i++) {
        if (stat(found.gl_pathv[i], &st) || S_ISDIR(st.st_mode)) continue;
        files++;
        if (!has(f, found.gl_pathv[i])) add(f, found.gl_pathv[i]);
    }
    if (rc == 0) globfree(&found);
    if (files) return 0;
    return pattern == path ? fail("data %s: no file matches this pattern", path)
                           : fail("data %s: no file matches %s: leave it out of the braces, or put it there",
                                  path, pattern);
}

static int find_pattern(struct data_files *f, const char *path) {
    if (find_each(f, path, path)) return -1;
    if (f->count) qsort(f->paths, (size_t)f->count, sizeof *f->paths, by_text);
    for (int i = f->count; i-- > 0;)
        if (is_beside(f, f->paths[i])) drop(f, i);
    return f->count ? 0 : fail("data %s: only files that accompany data match this pattern", path);
}

static int find_entries(struct data_files *f, const char *path) {
    struct dirent **names = NULL;
    int n = scandir(path, &names, NULL, NULL);
    if (n < 0) return fail("data %s: %s", path, strerror(errno));
    for (int i = 0; i < n; i++) {
        char *file = xasprintf("%s%s%s", path, ends_with(path, "/") ? "" : "/", names[i]->d_name);
        if (names[i]->d_name[0] != '.') add(f, file);
        free(file);
        free(names[i]);
    }
    free(names);
    if (f->count) qsort(f->paths, (size_t)f->count, sizeof *f->paths, by_text);
    return 0;
}

// ---------------------------------------------------------------- choosing
static int ending_of(const char *path) {
    for (size_t i = 0; i < ENDINGS; i++)
        if (ends_like(base_of(path), endings[i].ending)) return (int)i;
    return -1;
}

// Refuses a directory without a file that can be read as data.
static int refuse_all(const struct data_files *f, const char *path, const char *tokenizer) {
    const char *kind = tokenizer && !strcmp(tokenizer, "bin") ? ".bin" : ".txt or .bin", *train = NULL,
               *held = NULL;
    for (int i = 0; i < f->count; i++) {
        struct stat st;
        bool folder = !stat(f->paths[i], &st) && S_ISDIR(st.st_mode);
        enum purpose p =
            folder ? purpose_of_name(base_of(f->paths[i]), strlen(base_of(f->paths[i]))) : FOR_ANYTHING;
        if (p == FOR_TRAINING) train = f->paths[i];
        if (p == FOR_EVALUATION || (p == FOR_TEST && !held)) held = f->paths[i];
        char *text = folder
                         ? NULL
                         : file_kind_text(FILE_AS_DATA, file_kind_at(FILE_AS_DATA, f->paths[i]), f->paths[i]);
        if (text) fail("data %s: the directory has no %s file; %s", path, kind, text);
        free(text);
        if (text) return -1;
    }
    if (train && held)
        return fail("data %s: the directory has no %s file, but folders: give --data %s --data-val %s", path,
                    kind, train, held);
    return fail("data %s: the directory has no %s file", path, kind);
}

// Returns whether the same directory also has this data in a form that can be read: unpacked or converted.
static bool has_twin(const struct data_files *f, const char *path) {
    static const char *const twins[] = {"", ".txt", ".bin", ".tokens.bin"};
    const char *dot = strrchr(base_of(path), '.');
    size_t n = dot ? (size_t)(dot - path) : strlen(path);
    bool yes = false;
    for (size_t i = 0; i < sizeof twins / sizeof *twins && !yes; i++) {
        char *twin = xasprintf("%.*s%s", (int)n, path, twins[i]);
        yes = strcmp(twin, path) && has(f, twin);
        free(twin);
    }
    return yes;
}

// In a directory whose files are all for training, refuses an entry that is named as held-out data but would not be read:
// a directory, or a text with another extension.
static int refuse_held(const struct data_files *f, const char *path, const char *one_ending) {
    static const char *const texts[] = {".md",  ".text", ".csv",  ".tsv",    ".html", ".xml", ".log",
                                        ".tex", ".rst",  ".data", ".ndjson", ".gz",   ".zst"};
    bool trains = false;
    for (int i = 0; i < f->count; i++)
        trains = trains || (ending_of(f->paths[i]) >= 0 && purpose_of(f->paths[i]) == FOR_TRAINING);
    for (int i = 0; i < f->count; i++) {
        const char *base = base_of(f->paths[i]);
        enum purpose p = purpose_of_name(base, strlen(base));
        struct stat st;
        bool text = !strchr(base, '.'), folder = !stat(f->paths[i], &st) && S_ISDIR(st.st_mode);
        // A .json next to texts is probably settings, unless its whole name states a purpose, as val.json does.
        size_t letters = 0;
        while (isalpha((unsigned char)base[letters])) letters++;
        text = text || !strcasecmp(base + letters, ".json");
        for (size_t k = 0; k < sizeof texts / sizeof *texts; k++) text = text || ends_like(base, texts[k]);
        if ((!text && !folder) || is_beside(f, f->paths[i]) || has_twin(f, f->paths[i])) continue;
        if (p != FOR_EVALUATION && (p != FOR_TEST || !trains)) continue;
        return fail(
            "data %s: %s is held out, by its name, and is not read from here: give --data '%s%s*%s' --data-val %s",
            path, base, path, ends_with(path, "/") ? "" : "/", one_ending, f->paths[i]);
    }
    return 0;
}

// Keeps the files of one kind, texts or tokens. If names distinguish training and held-out files, only these files decide
// the kind.
static int choose_kind(struct data_files *f, const char *path, const char *tokenizer, bool split) {
    const char *text = NULL, *tokens = NULL, *other = NULL;
    for (int i = 0; i < f->count; i++) {
        int ending = ending_of(f->paths[i]);
        if (split && !purpose_of(f->paths[i])) continue;
        if (ending >= 0 && !(endings[ending].tokens ? tokens : text))
            *(endings[ending].tokens ? &tokens : &text) = f->paths[i];
        for (size_t k = 0; k < sizeof unread / sizeof *unread; k++)
            if (ends_like(base_of(f->paths[i]), unread[k]) && !has_twin(f, f->paths[i])) other = f->paths[i];
    }
    if (tokenizer && !strcmp(tokenizer, "bin")) text = NULL;
    if (tokenizer && !strcmp(tokenizer, "byte") && text) tokens = NULL;
    if (text && tokens)
        return fail(
            "data %s: has .txt and .bin files (%s, %s); choose with --tokenizer byte or --tokenizer bin, or by a pattern",
            path, base_of(text), base_of(tokens));
    if (!text && !tokens) return refuse_all(f, path, tokenizer);
    const char *one = text ? text : tokens;
    if (other)
        return fail(
            "data %s: has %s, which is read, and %s, which is not: convert it too, or name by a pattern what is meant: --data '%s%s*%s'",
            path, base_of(one), base_of(other), path, ends_with(path, "/") ? "" : "/", strrchr(one, '.'));
    if (!split && refuse_held(f, path, strrchr(one, '.'))) return -1;
    bool of_tokens = !text;
    for (int i = f->count; i-- > 0;) {
        int ending = ending_of(f->paths[i]);
        if (ending < 0 || endings[ending].tokens != of_tokens) drop(f, i);
    }
    return 0;
}

// Returns whether some names mark training files, and others held-out files. *held receives the purpose of the latter:
// evaluation, or test if there are no files for evaluation.
static bool is_split(const struct data_files *f, bool a_directory, enum purpose *held) {
    int of[4] = {0};
    for (int i = 0; i < f->count; i++)
        if (!a_directory || ending_of(f->paths[i]) >= 0) of[purpose_of(f->paths[i])]++;
    *held = of[FOR_EVALUATION] ? FOR_EVALUATION : FOR_TEST;
    return of[FOR_TRAINING] && of[*held];
}

static void take_part(struct data_files *f, enum purpose held, enum data_part part) {
    f->held_out = true;
    for (int i = 0; i < f->count;) {
        enum purpose p = purpose_of(f->paths[i]);
        if (p != FOR_TRAINING && p != held)
            text_add(&f->left_out, "%s%s", f->left_out ? ", " : "", base_of(f->paths[i]));
        if (p == (part == PART_TRAIN ? FOR_TRAINING : held))
            i++;
        else
            drop(f, i);
    }
}

int data_files_find(struct data_files *f, const char *path, const char *tokenizer, enum data_part part) {
    struct stat st;
    *f = (struct data_files){0};
    bool there = !stat(path, &st), a_directory = there && S_ISDIR(st.st_mode);
    f->several = a_directory || (!there && strpbrk(path, "*?[{"));
    if (!f->several) {
        char *bin = xasprintf("%s.bin", path), *index = xasprintf("%s.idx", path);
        int why = errno;
        bool pair = !there && !stat(bin, &st) && !stat(index, &st);
        if (there || pair) add(f, pair ? bin : path);
        free(bin);
        free(index);
        if (f->count) return 0;
        if (strstr(path, "://"))
            return fail("data %s: nothing is downloaded by this program: fetch the file, and name it here",
                        path);
        if (is_hub_name(path) && ending_of(path) < 0)
            return fail(
                "data %s: is on the Hugging Face hub, if anywhere, and nothing is downloaded by this program: fetch it by\n"
                "    hf download %s --repo-type dataset --local-dir %s\nand name the files of text in it",
                path, path, base_of(path));
        return fail(
            "data %s: %s; name a text file, a file of tokens, a directory, a pattern in quotes ('d/*_train_*.bin', "
            "'{a,b}.txt'), or demo",
            path, strerror(why));
    }
    if (a_directory ? find_entries(f, path) : find_pattern(f, path)) return -1;
    enum purpose held;
    if (a_directory && choose_kind(f, path, tokenizer, is_split(f, true, &held))) return -1;
    if (is_split(f, false, &held)) take_part(f, held, part);
    f->only_held = true;
    for (int i = 0; i < f->count; i++) f->only_held = f->only_held && purpose_of(f->paths[i]) > FOR_TRAINING;
    return 0;
}

void data_files_free(struct data_files *f) {
    for (int i = 0; i < f->count; i++) free(f->paths[i]);
    free(f->paths);
    free(f->left_out);
    *f = (struct data_files){0};
}
