// JSON as people write it: read without going beyond the text; what is read, printed and read again is the same.
#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

#include "shared/config/relaxed_json.h"
#include "shared/core/error.h"
#include "tests/fuzz/fuzz.h"

FUZZ_TARGET(json) {
    struct fuzz_bytes in = {data, size};
    char *text = fuzz_text(&in);
    cJSON *root = relaxed_json_try(text);
    if (root) {
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
