// JSON documents: their members, and the whole of one as text or as a file.
#ifndef STARRING_SHARED_CORE_JSON_H
#define STARRING_SHARED_CORE_JSON_H

#include <cjson/cJSON.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

// A member of o, or NULL. o may be NULL, here and below.
const cJSON *json_item(const cJSON *o, const char *key);
double json_number(const cJSON *o, const char *key);                            // NAN: no number
const char *json_text(const cJSON *o, const char *key, const char *otherwise);  // otherwise: no text

void json_put(cJSON *o, const char *key, double x);               // null where x is not finite
void json_put_text(cJSON *o, const char *key, const char *text);  // null where there is none, or it is ""

// The tree of a text, or NULL: it is no JSON, or has more than JSON_VALUES_MAX values, each of which takes 80 bytes and more
// whatever it takes in the text. Linear, and bounded by 170 MB beside the texts in it.
#define JSON_VALUES_MAX (2 << 20)
cJSON *json_parse(const char *text, size_t bytes);
// How many values the text has at most: seen before a tree is made of it.
int64_t json_values_at_most(const char *text, size_t bytes);

// The document, indented, and a line end.
void json_print(FILE *f, const cJSON *root);
// Writes root to path, by way of path.part. 0, or -1 after fail() named the file; then what was there before
// is as it was.
int json_file_write(const char *path, const cJSON *root);

#endif
