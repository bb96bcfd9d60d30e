// `starring bench checkpoint`: times writing and reading a model's state as a run does, and the same bytes with plain
// calls.
//
// The state is one buffer of random bits with zeros in the padding. For each unit it holds the masters, then every
// optimizer state. Participant r of `files` writes the r-th share of each, as the ranks of a ring do, on its own
// thread. The plain files have the same number and sizes. They are written from the same buffer in calls of 8 MiB, and
// fsynced.
//
// Disk      Before each measurement the previous files are removed and the file system is flushed (syncfs). Before
//           reading, the kernel is asked to drop the files' contents from its cache.
// Errors    -1 after fail() named file and reason.
#ifndef STARRING_SHARED_BENCH_BENCH_CHECKPOINT_H
#define STARRING_SHARED_BENCH_BENCH_CHECKPOINT_H

#include "shared/bench/bench.h"
#include "shared/config/config.h"
#include "shared/core/unit.h"
#include "shared/model/spec.h"

#define CHECKPOINT_FILES_MAX 64

// The times measured once per round, in seconds; each is followed by the plain way's.
enum checkpoint_series {
    WRITE,  // from the first participant's open to the rename
    WRITE_PLAIN,
    READ,  // opened, verified and read completely
    READ_PLAIN,
    CHECKPOINT_SERIES
};

struct checkpoint_bench {
    struct config *config;  // configuration of the command
    struct model_spec spec;
    struct layout *layout;
    const char *optimizer, *dtype;  // names for the manifest
    const char *where;              // as the user wrote it
    char *dir;                      // used as a run's directory; created and removed here
    int files;                      // participants
    int states;                     // states of the optimizer
    float *state;
    int64_t elements;  // elements in `state`
    // Bytes of each participant's file, set by the first checkpoint.
    int64_t file_bytes[CHECKPOINT_FILES_MAX];
    int64_t step;                       // step of the last checkpoint written
    float *back;                        // one unit's elements, as read
    double seconds[CHECKPOINT_SERIES];  // seconds of the last measurements
    struct bench_series series[CHECKPOINT_SERIES];
};

// Creates a directory below `where`, and the state. The caller sets where, layout, optimizer, dtype, states and files
// before.
int checkpoint_bench_open(struct checkpoint_bench *b);
// Removes the directory and everything in it. Also for a partly opened bench.
void checkpoint_bench_close(struct checkpoint_bench *b);
int checkpoint_bench_write(struct checkpoint_bench *b);
// _read: opens, verifies and reads the last checkpoint; compares the values bit by bit with the state, outside the
// timed part. _read_plain: reads the same files with read() only.
int checkpoint_bench_read(struct checkpoint_bench *b);
int checkpoint_bench_read_plain(struct checkpoint_bench *b);
int checkpoint_bench_plain(struct checkpoint_bench *b);

#endif
