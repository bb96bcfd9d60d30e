// JSON as people write it: read without going beyond the text; what is read, printed and read again is the same, not deeper
// than 64 levels, of finite numbers, and no text of it ends before its end.
#include <cjson/cJSON.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "shared/core/error.h"
#include "shared/core/relaxed_json.h"
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
    cJSON *root = relaxed_json_try(text);
    if (root) {
        // A zero would end a text. Comments may say anything, and a backslash may be escaped itself.
        bool zero = strstr(text, "\\u0000") && !strpbrk(text, "#/") && !strstr(text, "\\\\");
        check_values(root, 0);
        FUZZ_CHECK(!zero, "a zero within a text is accepted");
        char *printed = cJSON_PrintUnformatted(root);
        cJSON *again = relaxed_json_try(printed);
        char *twice = again ? cJSON_PrintUnformatted(again) : NULL;
        FUZZ_CHECK(twice && strcmp(printed, twice) == 0, "%s\nis read as\n%s", printed,
                   twice ? twice : "nothing");
        free(printed);
        free(twice);
        cJSON_Delete(again);
    } else {
        error_clear();
        FUZZ_CHECK(!relaxed_json_parse("FILE", text) && strncmp(error_last(), "FILE:", 5) == 0,
                   "refused in silence, or without the place: %s", error_last());
    }
    cJSON_Delete(root);
    free(text);
}
