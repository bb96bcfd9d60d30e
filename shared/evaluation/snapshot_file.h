// A file of a run's weights after some step, DIR/snapshots/step-K: what is evaluated apart from the run.
//
//     | header, marks of the parts, zeros |  unit 0  |  unit 1  | ..
//     0                              multiple of 4096, and so each unit's place depends on the model alone
//
// A unit lies there as in memory, from its first tensor to the end of its last one, in the run's type, without the padding
// for ranks: the file is the same whatever topology wrote it. Each rank of a ring writes its shard and then its mark;
// the first part also writes the header, with what is known of the moment. A file without its header or a mark was
// never finished.
//
// Threads   A file may be written from several threads if their ranges do not overlap; open and finish from one.
// Errors    Functions return -1 with the reason in snapshot_file_error, and log nothing: a snapshot that fails is
//           its owner's to warn about, and never a failure of the run.
#ifndef STARRING_SHARED_EVALUATION_SNAPSHOT_FILE_H
#define STARRING_SHARED_EVALUATION_SNAPSHOT_FILE_H

#include "kernels/dtype.h"
#include "shared/core/unit.h"

// The moment at which the weights were those of the file.
struct snapshot_info {
    // Steps of the job: global batches that the samples make, where workers go at their own pace.
    int64_t step;
    int64_t samples;  // of the whole job whose gradients are in the weights
    int64_t updates;  // applied
    double seconds;   // of training until then
};

struct snapshot_place {
    const char *path;
    const struct layout *layout;  // padded for any number of ranks; outlives the file
    enum dtype dtype;
};

struct snapshot_file;

// ---- writing: part of parts. NULL: the text is in error (malloc'd).
struct snapshot_file *snapshot_file_create(const struct snapshot_place *p, int part, int parts, char **error);
// Elements [begin, end) of unit u; what is padding is left out.
int snapshot_file_write(struct snapshot_file *f, int u, int64_t begin, int64_t end, const void *data);
// This part is whole. info: the first part's; the others pass NULL.
int snapshot_file_finish(struct snapshot_file *f, const struct snapshot_info *info);

// ---- reading. NULL (the text is in error, malloc'd): no file, not whole, or of another model.
struct snapshot_file *snapshot_file_open(const struct snapshot_place *p, struct snapshot_info *info,
                                         char **error);
// The whole unit, (n_pad) elements: zeros where the file has none.
int snapshot_file_read(struct snapshot_file *f, int u, void *out);

const char *snapshot_file_error(const struct snapshot_file *f);
const char *snapshot_file_path(const struct snapshot_file *f);
void snapshot_file_close(struct snapshot_file **f);

#endif
