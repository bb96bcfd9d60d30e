// `starring bench checkpoint`: a model's state written as a run writes it, the same bytes written plainly, and both read back.
//
// The state is one buffer of random bits with zeros in the padding: unit by unit, of each the masters and then every
// optimizer state. Participant r of `files` writes the r-th share of each, as the ranks of a ring do, on a thread of its own;
// the plain files have the same number and sizes, are written from the same buffer in calls of 8 MiB, and fsynced.
//
// Disk      Before each measurement what the last one left is removed and the file system has nothing in hand (syncfs).
//           Before reading, the kernel is asked to forget the files' contents.
// Errors    -1 after fail() named file and reason.
#ifndef STARRING_SHARED_BENCH_BENCH_CHECKPOINT_H
#define STARRING_SHARED_BENCH_BENCH_CHECKPOINT_H

#include "shared/bench/bench.h"
#include "shared/config/config.h"
#include "shared/core/unit.h"
#include "shared/model/spec.h"

#define CHECKPOINT_FILES_MAX 64

// The times measured once a round, in seconds; behind each the plain way's.
enum checkpoint_series {
    WRITE,  // from the first participant's open to the rename
    WRITE_PLAIN,
    READ,  // opened, verified and read whole
    READ_PLAIN,
    CHECKPOINT_SERIES
};

struct checkpoint_bench {
    struct config *config;  // of the command
    struct model_spec spec;
    struct layout *layout;
    const char *optimizer, *dtype;  // of the manifest
    const char *where;              // as the user named it
    char *dir;                      // stands for a run's directory; made and removed here
    int files;                      // participants
    int states;                     // of the optimizer
    float *state;
    int64_t elements;                          // of it
    int64_t file_bytes[CHECKPOINT_FILES_MAX];  // of each participant's file, after the first checkpoint
    int64_t step;                              // of the last checkpoint written
    float *back;                               // one unit's elements, as read
    int round;                                 // 0: not counted
    struct bench_series series[CHECKPOINT_SERIES];
};

// A directory of our own below `where`, and the state. The caller sets where, layout, optimizer, dtype, states and files before.
int checkpoint_bench_open(struct checkpoint_bench *b);
// Removes the directory and all that is in it. Also of one that is half open.
void checkpoint_bench_close(struct checkpoint_bench *b);
int checkpoint_bench_write(struct checkpoint_bench *b);
// Of the checkpoint written last: opened, verified and read whole; the values are compared with the state behind the clock, to the
// bit. And the same files through read() alone.
int checkpoint_bench_read(struct checkpoint_bench *b);
int checkpoint_bench_read_plain(struct checkpoint_bench *b);
int checkpoint_bench_plain(struct checkpoint_bench *b);

#endif
