// A JSON document as a file, whole or not at all.
#ifndef STARRING_SHARED_CONFIG_JSON_FILE_H
#define STARRING_SHARED_CONFIG_JSON_FILE_H

#include <cjson/cJSON.h>

// Writes root to path, by way of path.part. 0, or -1 after fail() named the file; then what was there before
// is as it was.
int json_file_write(const char *path, const cJSON *root);

#endif
