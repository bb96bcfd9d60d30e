// Reads Hjson, the format of DeepSpeed's configurations (hjson-py 3.1.0). It is all of JSON, and in addition
//   - comments: # and // to the end of the line, and /* .. */
//   - missing commas, and a comma after the last member or element
//   - names without quotes; texts in single quotes, or in three of them over several lines
//   - texts without quotes, which extend to the end of their line, with commas and brackets
//   - no brackets around the members of the whole document
// A value that begins like a number but is none in JSON (.5, 007, 1_000) is a text. A name that occurs twice in one
// object is an error, as in DeepSpeed. Other than in Hjson, these are errors: an empty document, \u0000, half a
// surrogate pair, and names and texts without quotes that begin with a typographic quote or a no-break space.
// Ownership  The caller deletes the returned tree: cJSON_Delete.
// Errors     NULL after fail() named file, line, column, what was expected and what was found.
// Time       Linear in the text, however long names are and however many members an object has.
// Threads    No state; any thread.
#ifndef STARRING_SHARED_CORE_RELAXED_JSON_H
#define STARRING_SHARED_CORE_RELAXED_JSON_H

#include <cjson/cJSON.h>

// Parses text. name is the file's name in messages.
cJSON *relaxed_json_parse(const char *name, const char *text);
#define RELAXED_JSON_BYTES_MAX \
    ((size_t)16 << 20)  // bytes of a file; the index of a model with 90,000 tensors has 9 MB
#define RELAXED_JSON_VALUES_MAX \
    (1 << 19)  // each takes up to 250 bytes of memory, however short it is in the text; that index has 90,000
// Reads and parses the file at path. Also fails if the file cannot be read, is no regular file, or contains a NUL
// byte.
cJSON *relaxed_json_load(const char *path);
// Writes to out the JSON form of a value that is written without quotes as in another language: "true" for True,
// "the number 0.1" for .1, "a list in brackets, [1, 2]" for (1, 2). The value ends at a comma, a closing bracket or
// a comment. out is "" if the value is not recognized. Returns out.
#define RELAXED_JSON_MEANT 128
const char *relaxed_json_meant(const char *text, char out[RELAXED_JSON_MEANT]);
// Parses one value without logging, for "--set key=value". Returns NULL if text is no value, or is a text without
// quotes.
cJSON *relaxed_json_try(const char *text);

#endif
