// The safetensors format (huggingface/safetensors, README "Format"):
//
//     | n: u64 little-endian | header: n bytes of JSON | data |
//     header = {"name": {"dtype": "F32", "shape": [2,3], "data_offsets": [begin, end]}, ..,
//               "__metadata__": {"key": "text"}}         offsets in bytes, relative to data
//
// A reader checks everything: a header beyond the file, sizes that are negative, huge or not what shape and
// dtype say, ranges outside the file, that overlap or leave holes, and names that occur twice are errors
// that name the file and the tensor.
//
// Ownership  st_open maps the file; tensors and names belong to it until st_close.
// Threads    A reader is read-only once open: any thread. A writer belongs to one thread.
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
    char type_name[12];  // as the file says it: "BF16"
    int dtype;           // enum dtype, or -1: a type of the format that this program does not compute with
    int dims;            // 0: a scalar
    int64_t shape[ST_MAX_DIMS];
    int64_t numel;
    const void *data;  // possibly unaligned; little-endian
    size_t bytes;
};

struct st_file;
struct st_file *st_open(const char *path);  // NULL after naming file, tensor and what is wrong
void st_close(struct st_file **f);
const char *st_path(const struct st_file *f);
uint64_t st_hash(const struct st_file *f);  // xxh64 of all its bytes
int st_count(const struct st_file *f);
const struct st_tensor *st_at(const struct st_file *f, int i);               // in the order of their names
const struct st_tensor *st_find(const struct st_file *f, const char *name);  // NULL: no such tensor

// Elements [first, first + count) as fp32 (fp64: rounded once). Types F32, F16, BF16 and F64; 0, or -1 for another
// type (nothing logged).
int st_to_f32(const struct st_tensor *t, int64_t first, int64_t count, float *out);

// A tensor to be written; names and order are the caller's, data follows in the same order.
struct st_entry {
    const char *name;
    enum dtype dtype;
    int dims;
    int64_t shape[ST_MAX_DIMS];
};

// A file that is written from its beginning to its end while it is hashed. Metadata is {"format": "pt"}, which transformers
// asks for. Nothing is logged: a reason goes to *error (malloc'd; an earlier one is kept).
struct st_written {
    int64_t bytes;   // of the file
    uint64_t xxh64;  // of all its bytes
};
struct st_writer;
// how: as st_writer_end leaves it, NEW_FILE_WHOLE or NEW_FILE_ON_DISK.
struct st_writer *st_writer_begin(const char *path, const struct st_entry *entries, int count,
                                  enum new_file_end how, char **error);
int st_writer_append(struct st_writer *w, const void *data, size_t bytes);  // 0, or -1: st_writer_error
const char *st_writer_error(const struct st_writer *w);  // why append says -1; NULL: it has not
int64_t st_writer_bytes(const struct st_writer *w);      // that the whole file will have
// Exactly the announced bytes have come: the file has its name. -1: the file is removed. Frees w. out may be NULL.
int st_writer_end(struct st_writer **w, struct st_written *out, char **error);
void st_writer_discard(struct st_writer **w);  // the file is removed; NULL is allowed

#endif
