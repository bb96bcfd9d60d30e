// Every key of DeepSpeed with every form of value that DeepSpeed takes for its type, and some that it does not
// (tests/data/deepspeed/keys.txt): what the table of docs/config.md says of the key becomes of it.
#include <math.h>

#include "shared/config/config_internal.h"
#include "tests/config/config_helper.h"

#define LIST      "tests/data/deepspeed/keys.txt"
#define LINE_ROOM 256

// A form of a value: as JSON, and what it is as a number (NAN: nothing to compare); refused: the words of the error.
struct form {
    const char *json;
    double value;
    const char *refused;
};
#define TAKEN(json, value) \
    { json, value, NULL }
#define NOT(json, words) \
    { json, 0, words }
static const struct form of_bool[] = {TAKEN("true", 1),
                                      TAKEN("false", 0),
                                      TAKEN("1", 1),
                                      TAKEN("0", 0),
                                      TAKEN("\"true\"", 1),
                                      TAKEN("\"False\"", 0),
                                      TAKEN("\"ON\"", 1),
                                      TAKEN("\"n\"", 0),
                                      TAKEN("\"auto\"", NAN),
                                      TAKEN("null", NAN),
                                      NOT("2", "true or false"),
                                      NOT("\"maybe\"", "true or false"),
                                      NOT("[]", "true or false")};
static const struct form of_int[] = {TAKEN("0", 0),
                                     TAKEN("1", 1),
                                     TAKEN("3.0", 3),
                                     TAKEN("5e8", 5e8),
                                     TAKEN("\"3\"", 3),
                                     TAKEN("\" +03 \"", 3),
                                     TAKEN("\"1_0\"", 10),
                                     TAKEN("\"5e8\"", 5e8),
                                     TAKEN("\"auto\"", NAN),
                                     TAKEN("null", NAN),
                                     TAKEN("-1", -1),
                                     NOT("2.5", "an integer"),
                                     NOT("\"many\"", "expected|many"),
                                     NOT("{}", "expected")};
static const struct form of_float[] = {TAKEN("0", 0),          TAKEN("0.5", 0.5), TAKEN("\".5\"", 0.5),
                                       TAKEN("\"1e-1\"", 0.1), TAKEN("1", 1),     TAKEN("null", NAN),
                                       TAKEN("\"auto\"", NAN), TAKEN("-1", -1),   NOT("\"x\"", "a number"),
                                       NOT("[]", "a number")};
static const struct form of_text[] = {TAKEN("\"some\"", NAN), TAKEN("null", NAN), TAKEN("\"auto\"", NAN),
                                      NOT("1", "a text")};
static const struct form raw_bool[] = {TAKEN("true", 1),
                                       TAKEN("false", 0),
                                       TAKEN("1", 1),
                                       TAKEN("0", 0),
                                       TAKEN("null", NAN),
                                       NOT("\"true\"", "write true without quotes"),
                                       NOT("\"False\"", "write false without quotes"),
                                       NOT("2", "true or false")};
static const struct form raw_int[] = {TAKEN("1", 1),
                                      TAKEN("3", 3),
                                      TAKEN("5e1", 50),
                                      TAKEN("4.0", 4),
                                      TAKEN("0", 0),
                                      TAKEN("-1", -1),
                                      TAKEN("null", NAN),
                                      NOT("\"3\"", "write the number 3"),
                                      NOT("2.5", "an integer"),
                                      NOT("true", "an integer")};
static const struct form raw_number[] = {TAKEN("0", 0),
                                         TAKEN("1", 1),
                                         TAKEN("0.25", 0.25),
                                         TAKEN("1e-4", 1e-4),
                                         TAKEN("null", NAN),
                                         NOT("\"1e-4\"", "write the number 0.0001"),
                                         NOT("\".5\"", "write the number 0.5"),
                                         NOT("true", "a number"),
                                         NOT("[1]", "a number")};
static const struct form raw_pair[] = {TAKEN("[0.9, 0.95]", NAN),   TAKEN("[0, 0.5]", NAN),
                                       TAKEN("\"auto\"", NAN),      NOT("0.9", "two numbers"),
                                       NOT("[0.9]", "two numbers"), NOT("[0.9, \"0.95\"]", "two numbers")};
static const struct form raw_dtype[] = {TAKEN("\"fp32\"", NAN),          TAKEN("\"FP32\"", NAN),
                                        TAKEN("\"float32\"", NAN),       TAKEN("\"Float\"", NAN),
                                        TAKEN("\"torch.float32\"", NAN), TAKEN("null", NAN),
                                        NOT("\"int8\"", "one of"),       NOT("32", "one of")};
#define FORMS(list) list, COUNT(list)
static const struct {
    const char *type;  // begins with it
    const struct form *forms;
    size_t count;
} types[] = {
    {"bool", FORMS(of_bool)},          {"int", FORMS(of_int)},        {"float", FORMS(of_float)},
    {"text", FORMS(of_text)},          {"raw:bool", FORMS(raw_bool)}, {"raw:int", FORMS(raw_int)},
    {"raw:number", FORMS(raw_number)}, {"raw:pair", FORMS(raw_pair)}, {"raw:dtype", FORMS(raw_dtype)}};

// Settings that a run needs besides, to have a use for the key.
static size_t around(const char *path, struct config_override o[4]) {
    static const char *const schedules[] = {"none",           "WarmupLR", "WarmupDecayLR",
                                            "WarmupCosineLR", "OneCycle", "LRRangeTest"};
    const struct config_key *f = config_key_find(path);
    size_t n = 0;
    if (f && f->schedules && strcmp(path, "scheduler.type") != 0) {
        unsigned type = 0;
        while (!(f->schedules >> type & 1)) type++;
        o[n++] = (struct config_override){"scheduler.type", schedules[type], NULL};
        if ((type == SCHEDULE_WARMUP_DECAY || type == SCHEDULE_WARMUP_COSINE) && !strstr(path, "total_num"))
            o[n++] = (struct config_override){"scheduler.params.total_num_steps", "1000", NULL};
        if (type == SCHEDULE_ONE_CYCLE && !strstr(path, "cycle_min_lr"))
            o[n++] = (struct config_override){"scheduler.params.cycle_min_lr", "1e-5", NULL};
        if (type == SCHEDULE_ONE_CYCLE && !strstr(path, "cycle_max_lr"))
            o[n++] = (struct config_override){"scheduler.params.cycle_max_lr", "1e-3", NULL};
    } else if (f && !strncmp(path, "optimizer.params.", 17)) {
        bool sgd = strstr(path, "momentum") || strstr(path, "dampening") || strstr(path, "nesterov");
        const char *type = sgd ? "SGD" : strstr(path, "freeze") ? "OneBitAdam" : "Adam";
        o[n++] = (struct config_override){"optimizer.type", type, NULL};
        if (strstr(path, "nesterov"))
            o[n++] = (struct config_override){"optimizer.params.momentum", "0.9", NULL};
    } else if (!strncmp(path, "zero_optimization.", 18) && !strstr(path, ".stage")) {
        o[n++] = (struct config_override){"zero_optimization.stage", "3", NULL};
        if (strstr(path, "cpu_offload_param"))
            o[n++] = (struct config_override){"zero_optimization.cpu_offload", "true", NULL};
    }
    return n;
}

// {"a": {"b": JSON}}
static void nested(const char *path, const char *json, char text[512]) {
    size_t n = 0;
    int depth = 1;
    n += (size_t)snprintf(text, 512, "{\"");
    for (const char *p = path; *p; p++) {
        if (*p != '.') {
            text[n++] = *p;
            continue;
        }
        n += (size_t)snprintf(text + n, 512 - n, "\": {\"");
        depth++;
    }
    n += (size_t)snprintf(text + n, 512 - n, "\": %s", json);
    for (; depth > 0; depth--) text[n++] = '}';
    text[n] = 0;
}

static struct config *try(const char *path, const char *json) {
    struct config_override o[4];
    char text[512];
    nested(path, json, text);
    error_clear();
    return load(text, o, around(path, o));
}

static void check_read(const struct config_key *f, const char *path, const struct form *form) {
    struct config *c = try(path, form->json);
    bool number = f->type != KEY_BOOL && f->type != KEY_NOT && f->type != KEY_TEXT;
    bool outside = number && !isnan(form->value) && (form->value < f->low || form->value > f->high);
    bool no_bool = f->no_bool && (!strcmp(form->json, "true") || !strcmp(form->json, "false"));
    bool real =
        (f->type == KEY_F64 || f->type == KEY_F32) && !strcmp(form->json, "2.5");  // where DeepSpeed has int
    bool one_group = f->of_groups && !strcmp(form->json, "[1]");
    if ((form->refused && !one_group) || outside || no_bool) {
        if (c && !real) fail_msg("%s: %s is accepted", path, form->json);
        if (!c)
            assert_words(error_last(), form->refused && !outside ? form->refused : "expected", form->json);
        if (!c) assert_words(error_last(), f->path, form->json);
    } else {
        // null is no value, where one has to be given.
        if (!c && strstr(error_last(), "is missing") && !strcmp(form->json, "null")) return;
        if (!c) fail_msg("%s: %s: %s", path, form->json, error_last());
        char *shown = config_value(c, f);
        char *end = NULL;
        double got = shown ? strtod(shown, &end) : NAN;
        double wanted = one_group ? 1 : form->value == 0 && f->zero > 0 ? f->zero : form->value;
        if (shown && (!strcmp(shown, "true") || !strcmp(shown, "false")))
            got = !strcmp(shown, "true");
        else if (shown && (end == shown || *end))
            got = NAN;
        bool warm_up = strstr(path, "warmup_num_steps") && wanted < 2;  // of which 2 are made
        if (!isnan(got) && !isnan(wanted) && !warm_up && fabs(got - wanted) > 1e-6 * fabs(wanted))
            fail_msg("%s: %s became %s", path, form->json, shown);
        free(shown);
    }
    config_destroy(&c);
}

static void check_known(const struct known *k, const char *path, const struct form *form) {
    struct config *c = try(path, form->json);
    bool off = isnan(form->value) || form->value == 0 ||
               (k->harmless && !strcmp(k->harmless, "1") && form->value == 1);
    if (k->use != KNOWN_REFUSED || (!form->refused && off)) {
        if (!c) fail_msg("%s: %s: %s", path, form->json, error_last());
    } else if (!form->refused && strstr(path, "fp32_allreduce")) {
        if (!c) fail_msg("%s: %s: %s", path, form->json, error_last());  // another key's word
    } else if (!form->refused || strstr(form->refused, "write false")) {
        if (c) fail_msg("%s: %s is accepted", path, form->json);
        if (form->refused) assert_words(error_last(), form->refused, form->json);
        assert_words(error_last(), path, form->json);
        assert_words(error_last(), "remove the key", form->json);
    }
    config_destroy(&c);
}

static void test_every_form_of_every_key(void **state) {
    (void)state;
    FILE *file = fopen(LIST, "r");
    assert_non_null(file);
    char line[LINE_ROOM], path[128], type[64];
    int keys = 0, forms = 0;
    while (fgets(line, sizeof line, file)) {
        if (line[0] == '#' || sscanf(line, "%127s %63s", path, type) != 2) continue;
        const struct config_key *f = config_key_find(path);
        const struct known *k = known_find(path);
        if (!strcmp(path, "gradient_clipping") || (!f && !k))
            continue;  // below 0: none (test_ds_kinds.py); of a section
        for (size_t i = 0; i < COUNT(types); i++) {
            if (strncmp(type, types[i].type, strlen(types[i].type)) != 0 || !strcmp(path, "optimizer.type"))
                continue;
            keys++;
            for (size_t j = 0; j < types[i].count; j++, forms++)
                f ? check_read(f, path, &types[i].forms[j]) : check_known(k, path, &types[i].forms[j]);
            break;
        }
    }
    fclose(file);
    assert_true(keys > 130 && forms > 1200);
}

// Keys of an earlier version: a value that asks for something is refused with a replacement; a value that means off
// is noted.
static void test_what_has_gone(void **state) {
    (void)state;
    int gone = 0;
    for (size_t i = 0; i < known_count(); i++) {
        const struct known *k = known_at(i);
        if (k->use != KNOWN_GONE) continue;
        struct config *off = try(k->path, "null");
        gone++;
        if (!off) fail_msg("%s: null: %s", k->path, error_last());
        config_destroy(&off);
        if (try(k->path, "\"some\"")) fail_msg("%s is accepted", k->path);
        assert_words(error_last(), k->path, k->path);
        assert_words(error_last(), k->why, k->path);
    }
    assert_true(gone > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_form_of_every_key),
        cmocka_unit_test(test_what_has_gone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
