// A whole configuration: the file's text, then, each behind a zero, "path=value" as --set takes them. An accepted
// configuration is written as JSON, which is accepted and has the same values.
#include "shared/config/config.h"

#include <stdlib.h>
#include <string.h>

#include "shared/core/error.h"
#include "tests/fuzz/fuzz.h"
#include "tests/topologies.h"

#define OVERRIDES_MAX 8

static void check_written(const struct config *c) {
    char *written = config_to_json(c), *path = fuzz_path("written.json");
    fuzz_put("written.json", written, strlen(written));
    struct config *again = config_load(&topologies, path, NULL, 0);
    FUZZ_CHECK(again, "what was accepted is refused as it is written: %s\n%s", error_last(), written);
    char *twice = config_to_json(again);
    FUZZ_CHECK(strcmp(written, twice) == 0, "written\n%s\nread as\n%s", written, twice);
    config_destroy(&again);
    free(twice);
    free(written);
    free(path);
}

FUZZ_TARGET(config) {
    struct fuzz_bytes in = {data, size};
    const void *end = size ? memchr(data, 0, size) : NULL;
    size_t n = end ? (size_t)((const uint8_t *)end - data) : size;
    struct config_override set[OVERRIDES_MAX];
    char *path = fuzz_path("config.json"), *texts[OVERRIDES_MAX];
    size_t count = 0;
    fuzz_put("config.json", data, n);
    in.p += end ? n + 1 : n;
    in.left -= end ? n + 1 : n;
    while (in.left && count < OVERRIDES_MAX) {
        char *text = fuzz_text(&in), *equals = strchr(text, '=');
        if (equals) *equals = 0;
        texts[count] = text;
        set[count++] = (struct config_override){text, equals ? equals + 1 : "", NULL};
    }
    error_clear();
    struct config *c = config_load(&topologies, path, set, count);
    FUZZ_CHECK(c || error_last()[0], "refused in silence");
    if (c) check_written(c);
    config_destroy(&c);
    for (size_t i = 0; i < count; i++) free(texts[i]);
    free(path);
}
