// JSON documents: their members, and a whole document as text or as a file.
#ifndef STARRING_SHARED_CORE_JSON_H
#define STARRING_SHARED_CORE_JSON_H

#include <cjson/cJSON.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

// Returns a member of o, or NULL. o may be NULL, here and below.
const cJSON *json_item(const cJSON *o, const char *key);
double json_number(const cJSON *o, const char *key);                            // NAN: not a number
const char *json_text(const cJSON *o, const char *key, const char *otherwise);  // otherwise: not a text

void json_put(cJSON *o, const char *key, double x);               // null if x is not finite
void json_put_text(cJSON *o, const char *key, const char *text);  // null if text is NULL or ""

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

#endif
