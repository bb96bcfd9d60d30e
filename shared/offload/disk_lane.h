// Moves bytes between memory and a file: one transfer at a time, cut into pieces, several of which are in flight.
// The two implementations are rows of one table: io_uring, and threads that call pread and pwrite.
//
// Threads    One thread uses a lane at a time.
// Blocking   disk_method.run, until every piece is done. Afterwards nothing accesses the buffer, also after an error.
#ifndef STARRING_SHARED_OFFLOAD_DISK_LANE_H
#define STARRING_SHARED_OFFLOAD_DISK_LANE_H

#include <stdbool.h>
#include <stddef.h>

// Offsets, sizes and addresses are multiples of this: a multiple of any disk's block.
#define DISK_ALIGN ((size_t)4096)
static inline size_t disk_round(size_t bytes) { return (bytes + DISK_ALIGN - 1) / DISK_ALIGN * DISK_ALIGN; }

struct disk_transfer {
    int fd;
    bool write;   // buf -> file, else file -> buf
    bool direct;  // fd is O_DIRECT: a count that is no multiple of DISK_ALIGN means the end of the file
    char *buf;
    size_t offset, bytes;
};

// Why a transfer failed.
struct disk_failure {
    size_t offset;  // in the file
    int error;      // errno; 0: the file ends here
};

struct disk_lane;  // opaque; each method has its own

struct disk_method {
    const char *name;
    // Returns NULL with errno if it is not available.
    struct disk_lane *(*open)(size_t block_bytes, int depth);
    void (*close)(struct disk_lane *lane);
    int (*run)(struct disk_lane *lane, const struct disk_transfer *t, struct disk_failure *why);  // 0, or -1
};
extern const struct disk_method disk_method_uring, disk_method_threads;

#endif
