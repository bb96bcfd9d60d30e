// Kinds of other programs' files, recognized by their first bytes or their name. Each kind has a row with advice:
// what to do when such a file is given as a model, and when it is given as data. The readers of models and data
// call these functions before they refuse a file, so that the message names the kind.
#ifndef STARRING_SHARED_HF_FILE_KIND_H
#define STARRING_SHARED_HF_FILE_KIND_H

#include <stdbool.h>
#include <stddef.h>

struct file_kind;

#define FILE_KIND_HEAD 512  // bytes at the start of a file that are examined; the file may be shorter

// A kind may concern models, data, or both.
enum file_use { FILE_AS_MODEL, FILE_AS_DATA };

// Returns the first row of the table that has advice for the use, or NULL. file_kind_of_bytes matches only the
// first bytes, file_kind_of also the name in the path.
const struct file_kind *file_kind_of_bytes(enum file_use use, const void *head, size_t bytes);
const struct file_kind *file_kind_of(enum file_use use, const char *path, const void *head, size_t bytes);
// As file_kind_of, but reads the first bytes of the file at path itself.
const struct file_kind *file_kind_at(enum file_use use, const char *path);
// Returns whether files of this kind are read as text anyway, although they are not plain text: JSON, tables.
bool file_kind_is_text(const struct file_kind *k);
// Returns the first row that has advice for models and matches one of the names. *which receives the index of the
// name.
const struct file_kind *file_kind_of_model_files(const char *const *names, int count, int *which);

// Returns "m/pytorch_model.bin is PyTorch's weights ..: make safetensors of it:\n    python3 .." (malloc'd), or
// NULL if k is NULL.
char *file_kind_text(enum file_use use, const struct file_kind *k, const char *path);

#endif
