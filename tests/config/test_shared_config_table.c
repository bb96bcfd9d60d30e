// docs/config.md against the program's own tables and DeepSpeed's documented keys (tests/data/deepspeed/keys.txt): each key
// stands in the section that says what becomes of it, with the default that it has.
#include <ctype.h>

#include "shared/config/config_internal.h"
#include "tests/config/config_helper.h"

#define PAGE      "docs/config.md"
#define LINE_ROOM 4096
#define ROWS_MAX  512

enum chapter {
    CHAPTER_NONE,
    CHAPTER_READ,
    CHAPTER_OWN,
    CHAPTER_NO_EFFECT,
    CHAPTER_IGNORED,
    CHAPTER_REFUSED,
    CHAPTER_GONE
};
static const char *const headings[] = {
    [CHAPTER_READ] = "## DeepSpeed's keys that are read",
    [CHAPTER_OWN] = "## Keys of our own",
    [CHAPTER_NO_EFFECT] = "## DeepSpeed's keys that change nothing here",
    [CHAPTER_IGNORED] = "## DeepSpeed's keys that are ignored with a warning",
    [CHAPTER_REFUSED] = "## DeepSpeed's keys that are refused",
    [CHAPTER_GONE] = "## Keys that have gone",
};

struct row {
    char *path;
    char *standard;  // the second cell: `VALUE`, or words
    enum chapter chapter;
};
static struct row rows[ROWS_MAX];
static int row_count;

static char *trimmed(const char *from, const char *end) {
    while (from < end && isspace((unsigned char)*from)) from++;
    while (end > from && isspace((unsigned char)end[-1])) end--;
    return strndup(from, (size_t)(end - from));
}

// "| `a.b`, `a.c` | `1` | ..": a row for each path of the first cell.
static void read_row(const char *line, enum chapter chapter) {
    const char *end = strchr(line + 1, '|'), *next = end ? strchr(end + 1, '|') : NULL;
    if (!next) fail_msg("%s: not a row: %s", PAGE, line);
    for (const char *p = line; (p = strchr(p, '`')) && p < end;) {
        const char *close = strchr(p + 1, '`');
        assert_true(close && close < end && row_count < ROWS_MAX);
        rows[row_count++] = (struct row){trimmed(p + 1, close), trimmed(end + 1, next), chapter};
        p = close + 1;
    }
}

static int read_page(void **state) {
    (void)state;
    FILE *f = fopen(PAGE, "r");
    if (!f) return -1;
    char line[LINE_ROOM];
    enum chapter chapter = CHAPTER_NONE;
    while (fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = 0;
        if (!strncmp(line, "## ", 3)) {
            chapter = CHAPTER_NONE;
            for (int i = CHAPTER_READ; i <= CHAPTER_GONE; i++)
                if (!strcmp(line, headings[i])) chapter = (enum chapter)i;
        } else if (chapter && !strncmp(line, "| `", 3)) {
            read_row(line, chapter);
        }
    }
    fclose(f);
    return 0;
}

static int forget_page(void **state) {
    (void)state;
    for (int i = 0; i < row_count; i++) free(rows[i].path), free(rows[i].standard);
    return 0;
}

static const struct row *row_of(const char *path) {
    for (int i = 0; i < row_count; i++)
        if (!strcmp(rows[i].path, path)) return &rows[i];
    return NULL;
}

// Every key of the program has a row where it belongs; what is wrong is told all at once.
static void test_every_key_has_its_row(void **state) {
    (void)state;
    static const enum chapter of_use[] = {[KNOWN_NO_EFFECT] = CHAPTER_NO_EFFECT,
                                          [KNOWN_IGNORED] = CHAPTER_IGNORED,
                                          [KNOWN_REFUSED] = CHAPTER_REFUSED,
                                          [KNOWN_ELSEWHERE] = CHAPTER_REFUSED,
                                          [KNOWN_GONE] = CHAPTER_GONE};
    int wrong = 0;
    for (size_t i = 0; i < config_key_count(); i++) {
        const struct row *r = row_of(config_key_at(i)->path);
        if (r && (r->chapter == CHAPTER_READ || r->chapter == CHAPTER_OWN)) continue;
        print_message("%s: `%s` is read and has no row that says so\n", PAGE, config_key_at(i)->path);
        wrong++;
    }
    for (size_t i = 0; i < known_count(); i++) {
        const struct row *r = row_of(known_at(i)->path);
        if (r && r->chapter == of_use[known_at(i)->use]) continue;
        print_message("%s: `%s` belongs in \"%s\"\n", PAGE, known_at(i)->path,
                      headings[of_use[known_at(i)->use]]);
        wrong++;
    }
    assert_int_equal(wrong, 0);
}

static void test_every_row_is_a_key(void **state) {
    (void)state;
    assert_true(row_count > 150);
    for (int i = 0; i < row_count; i++) {
        if (!config_key_find(rows[i].path) && !known_find(rows[i].path))
            fail_msg("%s: `%s` is no key of the program", PAGE, rows[i].path);
        if (row_of(rows[i].path) != &rows[i]) fail_msg("%s: `%s` stands there twice", PAGE, rows[i].path);
    }
}

// A default in backticks is the program's; words are for those that depend on other keys.
static void test_defaults(void **state) {
    (void)state;
    struct draft d;
    draft_init(&d);
    draft_set_optimizer(&d, optimizer_find("AdamW"));
    int compared = 0;
    for (size_t i = 0; i < config_key_count(); i++) {
        const struct row *r = row_of(config_key_at(i)->path);
        if (!r || r->standard[0] != '`') continue;
        cJSON *v = key_load(config_key_at(i), &d);
        char *text = v ? cJSON_PrintUnformatted(v) : NULL, *quoted = NULL;
        assert_true(asprintf(&quoted, "`%s`", text ? text : "null") > 0);
        if (strcmp(quoted, r->standard)) fail_msg("%s: `%s`: %s, not %s", PAGE, r->path, quoted, r->standard);
        compared++;
        free(quoted);
        free(text);
        cJSON_Delete(v);
    }
    draft_fini(&d);
    assert_true(compared > 60);
}

// Is the path known, or a section that holds known keys, or a key of a section that is known as a whole?
static bool is_met(const char *path) {
    char above[256];
    snprintf(above, sizeof above, "%s", path);
    for (char *dot = above; dot; dot = strrchr(above, '.')) {
        if (dot != above) *dot = 0;
        if (known_find(above) || (dot == above && config_key_find(above))) return true;
    }
    size_t n = strlen(path);
    for (size_t i = 0; i < config_key_count(); i++)
        if (!strncmp(config_key_at(i)->path, path, n) && config_key_at(i)->path[n] == '.') return true;
    return false;
}

// The page's row of a type has the key; -1: no row.
static int is_typed(const char *page, const char *type, const char *key) {
    char begin[80], name[160];
    snprintf(begin, sizeof begin, "\n| %s | ", type);
    for (char *bar; (bar = strchr(begin + 3, '|')) && bar[1] != ' ';) {  // a cell has no bars
        memmove(bar + 2, bar + 1, strlen(bar));
        memcpy(bar, ", ", 2);
    }
    snprintf(name, sizeof name, "`%s`", key);
    const char *row = strstr(page, begin), *end = row ? strchr(row + 1, '\n') : NULL,
               *at = row ? strstr(row, name) : NULL;
    return !end ? -1 : at && at < end;
}

// "## The types of DeepSpeed's keys" has each key that has a type, in the type's row.
static void test_every_type_is_told(void **state) {
    (void)state;
    FILE *f = fopen(PAGE, "r"), *list = fopen("tests/data/deepspeed/keys.txt", "r");
    assert_true(f && list);
    char *page = calloc(1 << 20, 1), line[LINE_ROOM], key[128], type[64];
    assert_true(fread(page, 1, (1 << 20) - 1, f) > 0);
    int typed = 0, untold = 0;
    while (fgets(line, sizeof line, list)) {
        if (line[0] == '#' || sscanf(line, "%127s %63s", key, type) != 2 || !strcmp(type, "section"))
            continue;
        typed++;
        if (is_typed(page, type, key) == 1) continue;
        print_message("%s: `%s` belongs in the row of %s\n", PAGE, key, type);
        untold++;
    }
    fclose(f);
    fclose(list);
    assert_int_equal(is_typed(page, "bool", "zero_optimization.stage"), 0);
    assert_int_equal(is_typed(page, "complex", "zero_optimization.stage"), -1);
    free(page);
    assert_true(typed > 170);
    assert_int_equal(untold, 0);
}

static void test_every_key_of_deepspeed_is_met(void **state) {
    (void)state;
    FILE *f = fopen("tests/data/deepspeed/keys.txt", "r");
    assert_non_null(f);
    char line[LINE_ROOM];
    int keys = 0, unmet = 0;
    assert_non_null(fgets(line, sizeof line, f));
    assert_non_null(strstr(line, "DeepSpeed 0.19.6"));
    while (fgets(line, sizeof line, f)) {
        line[strcspn(line, " \n")] = 0;  // behind it stands the type: test_shared_config_types.c
        keys++;
        if (is_met(line)) continue;
        print_message("%s: neither read, ignored nor refused\n", line);
        unmet++;
    }
    fclose(f);
    assert_true(keys > 230);
    assert_int_equal(unmet, 0);
    assert_false(is_met("zero_optimization.stages"));
    assert_false(is_met("tensorboard.enable"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_key_has_its_row),
        cmocka_unit_test(test_every_row_is_a_key),
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_every_key_of_deepspeed_is_met),
        cmocka_unit_test(test_every_type_is_told),
    };
    return cmocka_run_group_tests(tests, read_page, forget_page);
}
