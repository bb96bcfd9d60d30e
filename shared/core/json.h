// JSON documents: their members, and a whole document as text or as a file.
#ifndef STARRING_SHARED_CORE_JSON_H
#define STARRING_SHARED_CORE_JSON_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

// Returns a member of o, or NULL. o may be NULL, here and below.
const cJSON *json_item(const cJSON *o, const char *key);
double json_number(const cJSON *o, const char *key);  // NAN: it does not exist, or is no number
// Returns the member's text; `otherwise` if it does not exist, or is no text.
const char *json_text(const cJSON *o, const char *key, const char *otherwise);

void json_put(cJSON *o, const char *key, double x);               // puts null if x is not finite
void json_put_text(cJSON *o, const char *key, const char *text);  // puts null if text is NULL or ""

// Parses a text. Returns NULL if it is not JSON, or if it has more than JSON_VALUES_MAX values. Each value takes at
// least 80 bytes, however short it is in the text. The time is linear; the memory is at most 170 MB plus the texts.
#define JSON_VALUES_MAX (2 << 20)
cJSON *json_parse(const char *text, size_t bytes);
// Returns an upper bound of the number of values, without parsing.
int64_t json_values_at_most(const char *text, size_t bytes);

// Prints the document, indented, and a newline.
void json_print(FILE *f, const cJSON *root);
// Writes root to path by way of path.part. Returns 0, or -1 after fail() named the file; then an earlier file is
// unchanged.
int json_file_write(const char *path, const cJSON *root);

// ---------------------------------------------------------------- relaxed JSON (Hjson)
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
// Time       Linear in the text; in an object's members n log n.
// Threads    No state; any thread.

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

// ---------------------------------------------------------------- names of an object's members
// Maps names to numbers, so that readers of objects with many members need no quadratic time. It is a tree of tsearch(3),
// which stays balanced for any names.

struct name_map {
    void *tree;  // the names belong to the caller, and must exist as long as the map
    size_t count;
};

// Returns the value of the name. A new name gets `value`, and *added becomes true.
int64_t name_map_put(struct name_map *m, const char *name, int64_t value, bool *added);
// Returns -1 if the name is absent.
int64_t name_map_get(const struct name_map *m, const char *name);
void name_map_free(struct name_map *m);  // leaves an empty map

#endif
