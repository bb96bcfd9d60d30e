// What `starring bench checkpoint` times: a model's state written as a run writes it, the same bytes written plainly,
// and both read back.
//
// The state is one buffer of random bits with zeros in the padding: unit by unit, of each the masters and then every
// optimizer state. Participant r of `files` writes the r-th share of each, as the ranks of a ring do, on a thread of its own;
// the plain files have the same number and sizes, are written from the same buffer in calls of 8 MiB, and fsynced: through
// the kernel's cache, and past it (O_DIRECT, room reserved before), because either may be what a disk does best.
//
// Disk      Before each measurement what the last one left is removed and the file system has nothing in hand (syncfs).
//           Before reading, the kernel is asked to forget the files' contents, and `cached` tells how much it kept.
// Errors    -1 after fail() named file and reason.
#ifndef STARRING_SHARED_BENCH_CHECKPOINT_WORK_H
#define STARRING_SHARED_BENCH_CHECKPOINT_WORK_H

#include <stdbool.h>
#include <stdint.h>

#include "shared/core/unit.h"

#define CHECKPOINT_FILES_MAX 64

struct checkpoint_bench {
    const struct layout *layout;
    const char *optimizer, *dtype;  // of the manifest
    int states;                     // of the optimizer
    int files;                      // participants
    char *dir;                      // stands for a run's directory; made and removed here
    float *state;
    int64_t elements;                          // of it
    int64_t file_bytes[CHECKPOINT_FILES_MAX];  // of each participant's file, after the first checkpoint
    int64_t step;                              // of the last checkpoint written
    float *back;                               // one unit's elements, as read
};

// Seconds of one checkpoint; the first three follow each other and add up to the whole.
struct checkpoint_times {
    double handing_over;  // until the last participant has handed all of its state to its file
    double finishing;     // until everything is on disk, with the last sidecar
    double completing;    // manifest and rename
    double whole;
    double user, system;  // of all participants' threads
};

// A directory of our own below `where`, and the state. The caller sets layout, optimizer, dtype, states and files before.
int checkpoint_bench_open(struct checkpoint_bench *b, const char *where);
// Removes the directory and all that is in it. Also of one that is half open.
void checkpoint_bench_close(struct checkpoint_bench *b);

double checkpoint_bench_bytes(const struct checkpoint_bench *b);  // of a checkpoint's files, manifest aside
int checkpoint_bench_write(struct checkpoint_bench *b, struct checkpoint_times *out);
int checkpoint_bench_plain(struct checkpoint_bench *b, double *seconds);
// The last bytes behind a multiple of 4 KiB are left out. *seconds is 0 where the file system has no O_DIRECT.
int checkpoint_bench_direct(struct checkpoint_bench *b, double *seconds);
// As long as a participant's thread would need for the xxh64 of its share, all at once.
int checkpoint_bench_hash(struct checkpoint_bench *b, double *seconds);

// Of the checkpoint written last: opened, verified and read whole; the values are compared with the state behind the
// clock, to the bit. And the same files through read() alone. cached: the share of their bytes that was in memory before.
struct read_times {
    double seconds, cached;
};
int checkpoint_bench_read(struct checkpoint_bench *b, struct read_times *out);
int checkpoint_bench_read_plain(struct checkpoint_bench *b, struct read_times *out);

// "ext4", "tmpfs", or "0x.." of the file system of dir. Returns text.
#define FILE_SYSTEM_BYTES 24
const char *file_system_of(const char *dir, char text[FILE_SYSTEM_BYTES]);

#endif
