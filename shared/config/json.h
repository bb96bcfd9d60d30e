// JSON documents: their members, and the whole of one as text or as a file.
#ifndef STARRING_SHARED_CONFIG_JSON_H
#define STARRING_SHARED_CONFIG_JSON_H

#include <cjson/cJSON.h>
#include <stdio.h>

// A member of o, or NULL. o may be NULL, here and below.
const cJSON *json_item(const cJSON *o, const char *key);
double json_number(const cJSON *o, const char *key);                            // NAN: no number
const char *json_text(const cJSON *o, const char *key, const char *otherwise);  // otherwise: no text

void json_put(cJSON *o, const char *key, double x);               // null where x is not finite
void json_put_text(cJSON *o, const char *key, const char *text);  // null where there is none, or it is ""

// The document, indented, and a line end.
void json_print(FILE *f, const cJSON *root);
// Writes root to path, by way of path.part. 0, or -1 after fail() named the file; then what was there before
// is as it was.
int json_file_write(const char *path, const cJSON *root);

#endif
