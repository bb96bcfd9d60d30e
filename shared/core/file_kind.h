// The kinds of files that other programs read: known by their first bytes, else by their name. Each has a row, with what
// to do where such a file is given as a model and where it is given as data. Readers of both ask here before they refuse
// what they cannot read, so that a message names the kind.
#ifndef STARRING_SHARED_CORE_FILE_KIND_H
#define STARRING_SHARED_CORE_FILE_KIND_H

#include <stdbool.h>
#include <stddef.h>

struct file_kind;

#define FILE_KIND_HEAD 512  // bytes of a file's beginning that are looked at; fewer are fine

// A kind may concern models, data, or both.
enum file_use { FILE_AS_MODEL, FILE_AS_DATA };

// The first row, in the order of the table, that says something of the use: by the first bytes alone, and by these or the name of
// a path; NULL: none.
const struct file_kind *file_kind_of_bytes(enum file_use use, const void *head, size_t bytes);
const struct file_kind *file_kind_of(enum file_use use, const char *path, const void *head, size_t bytes);
// The same of the file at path, of which the first bytes are read.
const struct file_kind *file_kind_at(enum file_use use, const char *path);
// Text that is read as it stands, though it holds more than a text: JSON, tables.
bool file_kind_is_text(const struct file_kind *k);
// The first row that says something of models, and that a name of the list belongs to. *which: the name's place.
const struct file_kind *file_kind_of_model_files(const char *const *names, int count, int *which);

// "m/pytorch_model.bin is PyTorch's weights ..: make safetensors of it:\n    python3 .." (malloc'd). NULL: k is NULL.
char *file_kind_text(enum file_use use, const struct file_kind *k, const char *path);

#endif
