// The safetensors format (huggingface/safetensors, README "Format"):
//
//     | n: u64 little-endian | header: n bytes of JSON | data |
//     header = {"name": {"dtype": "F32", "shape": [2,3], "data_offsets": [begin, end]}, ..,
//               "__metadata__": {"key": "text"}}         offsets in bytes, relative to data
//
// A reader checks everything. It reports these errors with the file and the tensor: a header that is longer than the file;
// sizes that are negative, huge or inconsistent with shape and dtype; ranges that are outside the file, overlap or leave
// holes; names that occur twice.
//
// Ownership  st_open maps the file. Tensors and names belong to it until st_close.
// Threads    A reader is read-only once open: any thread may use it. A writer belongs to one thread.
#ifndef STARRING_SHARED_HF_SAFETENSORS_H
#define STARRING_SHARED_HF_SAFETENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/dtype.h"
#include "shared/core/disk.h"

#define ST_MAX_DIMS 8

struct st_tensor {
    char *name;
    char type_name[12];  // as in the file: "BF16"
    int dtype;           // enum dtype, or -1: a type that this program cannot compute with
    int dims;            // 0: a scalar
    int64_t shape[ST_MAX_DIMS];
    int64_t numel;
    const void *data;  // possibly unaligned; little-endian
    size_t bytes;
};

struct st_file;
struct st_file *st_open(const char *path);  // NULL after logging file, tensor and what is wrong
void st_close(struct st_file **f);
const char *st_path(const struct st_file *f);
uint64_t st_hash(const struct st_file *f);  // xxh64 of all its bytes
int st_count(const struct st_file *f);
const struct st_tensor *st_at(const struct st_file *f, int i);               // in the order of their names
const struct st_tensor *st_find(const struct st_file *f, const char *name);  // NULL: no such tensor

// Converts elements [first, first + count) to fp32 (fp64: rounded once). Types F32, F16, BF16 and F64. Returns 0,
// or -1 for another type (nothing is logged).
int st_to_f32(const struct st_tensor *t, int64_t first, int64_t count, float *out);

// A tensor to be written. The caller owns the names and chooses the order; data is appended in the same order.
struct st_entry {
    const char *name;
    enum dtype dtype;
    int dims;
    int64_t shape[ST_MAX_DIMS];
};

// A file that is written from start to end, and hashed at the same time. Its metadata is {"format": "pt"}, which
// transformers requires. Nothing is logged: *error receives the reason (malloc'd; an earlier text is kept).
struct st_written {
    int64_t bytes;   // of the file
    uint64_t xxh64;  // of all its bytes
};
struct st_writer;
// how: NEW_FILE_WHOLE or NEW_FILE_ON_DISK, for st_writer_end.
struct st_writer *st_writer_begin(const char *path, const struct st_entry *entries, int count,
                                  enum new_file_end how, char **error);
int st_writer_append(struct st_writer *w, const void *data, size_t bytes);  // 0, or -1: st_writer_error
const char *st_writer_error(const struct st_writer *w);  // why append returned -1; NULL: no error
int64_t st_writer_bytes(const struct st_writer *w);      // of the complete file
// Gives the file its name if exactly the announced bytes were appended. Returns 0, or -1 with the file removed.
// Frees w. out may be NULL.
int st_writer_end(struct st_writer **w, struct st_written *out, char **error);
void st_writer_discard(struct st_writer **w);  // removes the file; *w may be NULL

#endif
