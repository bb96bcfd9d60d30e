// JSON as people write it for DeepSpeed, whose reader is hjson: on top of RFC 8259 it accepts
//   - comments: # and // to the end of the line, and /* .. */
//   - a comma after the last member or element
//   - no comma at all between members or elements that stand on separate lines
// Numbers are those of JSON (5e8 is the integer 500000000); names and strings need double quotes.
// A name that occurs twice in one object is an error, as it is in DeepSpeed.
//
// Ownership  The caller owns the returned tree: cJSON_Delete.
// Errors     NULL after fail() named file, line, column, what was expected and what stands there.
// Time       Linear in the text, however long names are and however many members an object has.
// Threads    No state; any thread.
#ifndef STARRING_SHARED_CORE_RELAXED_JSON_H
#define STARRING_SHARED_CORE_RELAXED_JSON_H

#include <cjson/cJSON.h>

// Parses text; name stands for the file in messages.
cJSON *relaxed_json_parse(const char *name, const char *text);
#define RELAXED_JSON_BYTES_MAX \
    ((size_t)16 << 20)  // of a file: the index of a model with 90,000 tensors has 9 MB
#define RELAXED_JSON_VALUES_MAX \
    (1 << 19)  // each takes up to 250 bytes, whatever it takes in the text; that index has 90,000
// Reads and parses the file at path; also fails when it cannot be read, is no regular file, or holds a NUL byte.
cJSON *relaxed_json_load(const char *path);
// Like relaxed_json_parse, but silent: NULL when text is no JSON. For "--set key=value" values, which
// are JSON or a bare string.
cJSON *relaxed_json_try(const char *text);

#endif
