// Hjson: read without going beyond the text; what is read, printed and read again is the same, not deeper than 64 levels, of
// finite numbers. A value of the command line is read as in a file, or not at all; a file that is no object is read there, too.
#include <cjson/cJSON.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "shared/core/error.h"
#include "shared/core/json.h"
#include "tests/fuzz/fuzz.h"

#define LEVELS 64

static void check_values(const cJSON *j, int level) {
    FUZZ_CHECK(!cJSON_IsNumber(j) || isfinite(j->valuedouble), "a number that is none");
    FUZZ_CHECK(level < LEVELS || !(cJSON_IsArray(j) || cJSON_IsObject(j)), "more than %d levels", LEVELS);
    for (const cJSON *child = j->child; child; child = child->next) check_values(child, level + 1);
}

FUZZ_TARGET(json) {
    struct fuzz_bytes in = {data, size};
    char *text = fuzz_text(&in);
    error_clear();
    cJSON *root = relaxed_json_parse("FILE", text), *value = relaxed_json_try(text);
    FUZZ_CHECK(root || strncmp(error_last(), "FILE:", 5) == 0, "refused in silence, or without the place: %s",
               error_last());
    FUZZ_CHECK(!value || cJSON_Compare(root, value, true), "a value alone is another: %s", text);
    FUZZ_CHECK(value || !root || cJSON_IsObject(root), "a file's value is none alone: %s", text);
    if (root) {
        check_values(root, 0);
        char *printed = cJSON_PrintUnformatted(root);
        cJSON *again = relaxed_json_try(printed);
        char *twice = again ? cJSON_PrintUnformatted(again) : NULL;
        FUZZ_CHECK(twice && strcmp(printed, twice) == 0, "%s\nis read as\n%s", printed,
                   twice ? twice : "nothing");
        free(printed);
        free(twice);
        cJSON_Delete(again);
    }
    cJSON_Delete(root);
    cJSON_Delete(value);
    free(text);
}
