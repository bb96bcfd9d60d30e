// Hjson, the reader of DeepSpeed's configurations (hjson-py 3.1.0), which takes all of JSON, and besides
//   - comments: # and // to the end of the line, and /* .. */
//   - no commas, and one behind the last member or element
//   - names without quotes; texts in single quotes, or in three of them over several lines
//   - texts without quotes, which go to the end of their line, commas and brackets included
//   - no brackets around the members of the whole
// A value that begins as a number and is none of JSON's (.5, 007, 1_000) is a text. A name that occurs twice in one object is an error, as
// DeepSpeed makes it. Unlike there, a text of nothing is no object, and \u0000, half a surrogate pair, and names and texts without quotes
// that begin with a typographic quote or a no-break space are errors.
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
// The words for JSON's form of a value that stands there without quotes as another language writes it, up to a comma, a closing
// bracket or a comment: "true" for True, "the number 0.1" for .1, "a list in brackets, [1, 2]" for (1, 2). "": the value is
// not known. Returns out.
#define RELAXED_JSON_MEANT 128
const char *relaxed_json_meant(const char *text, char out[RELAXED_JSON_MEANT]);
// Like relaxed_json_parse, but silent, and of one value: NULL where text is none, or a text without quotes. For "--set
// key=value".
cJSON *relaxed_json_try(const char *text);

#endif
