// disk_store: state that a rank keeps on disk instead of in memory, in one file of its own. Reads and writes are calls on
// streams, so a caller overlaps reading, computing and writing with three streams and events.
//
//     read stream      | read u0 | read u1 | read u2 | ..
//     compute stream             | upd u0  | upd u1  | ..
//     write stream                         | wr u0   | wr u1 ..
//
// File       One per store, in options.dir. It has no name (O_TMPFILE; if the file system does not support that, a unique
//            name that is removed at once). So no other program opens it, and nothing is left however the process ends.
//            All of its space is allocated when it is created. Ranges that were never written read as zeros.
// Bytes      Offsets, sizes and addresses of buffers are multiples of DISK_ALIGN. Transfers bypass the kernel's
//            cache (O_DIRECT) and use io_uring, in pieces of block_bytes, with at most `depth` in flight. If the
//            file system refuses O_DIRECT they use the cache; if the kernel forbids io_uring, threads call pread
//            and pwrite. disk_store_remark reports such a fallback.
// Ownership  The caller owns buffers and keeps them until the stream has completed the call. A range must not be
//            read and written at once: events order the streams.
// Threads    Any. Two calls on two streams run at the same time; calls on one stream run in order.
// Blocking   disk_store_read and disk_store_write only enqueue. disk_store_load and disk_store_save block.
// Errors     A failed call on a stream logs label, range, directory and what to do; the stream has failed. A
//            violation of the contract (alignment, bounds) asserts.
#ifndef STARRING_SHARED_OFFLOAD_DISK_STORE_H
#define STARRING_SHARED_OFFLOAD_DISK_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/backend.h"
#include "shared/offload/disk_lane.h"

struct disk_store;  // opaque

// The defaults of DeepSpeed's section "aio" (docs/ring.md, Offload: the store).
#define DISK_BLOCK_BYTES ((size_t)1 << 20)
#define DISK_DEPTH       16
#define DISK_DEPTH_MAX   1024

enum disk_engine {
    DISK_ENGINE_AUTO,  // io_uring, or threads where the kernel forbids it
    DISK_ENGINE_URING,
    DISK_ENGINE_THREADS,
};

struct disk_store_options {
    const char *dir;     // directory of the file; created if only its last component is missing
    const char *key;     // the configuration key of dir, for errors; NULL: not printed
    const char *label;   // "rank 1": printed in errors; NULL: nothing
    size_t bytes;        // of the file, rounded up to DISK_ALIGN; > 0
    size_t block_bytes;  // aio.block_size: bytes per piece, a multiple of DISK_ALIGN; 0: DISK_BLOCK_BYTES
    int depth;           // aio.queue_depth: pieces in flight per call, 1 .. DISK_DEPTH_MAX; 0: DISK_DEPTH
    enum disk_engine engine;
};

// A range of the file. name: printed in errors ("unit 3, masters"); copied.
struct disk_range {
    size_t offset, bytes;
    const char *name;
};

// Returns the first aligned address of a buffer of bytes + DISK_ALIGN - DEV_ALIGN from dev_alloc or an arena.
static inline void *disk_aligned(void *p) { return (void *)disk_round((uintptr_t)p); }
// Returns the offset of the next `bytes` of a file, and adds them to *used. The caller makes the same calls to plan the
// file's size and to use the file.
static inline size_t disk_take(size_t *used, size_t bytes) {
    size_t offset = *used;
    *used += disk_round(bytes);
    return offset;
}

// Returns 0, or -1 after logging the directory, the bytes wanted and free, and what to do.
int disk_store_create(struct disk_store **out, const struct disk_store_options *o);
// Call it when the streams that use the store are idle or destroyed. Deletes the file.
void disk_store_destroy(struct disk_store **s);

// Enqueue a read of the range into `to`, or a write of `from` to the range. Both are host memory.
void disk_store_read(struct disk_store *s, struct stream *stream, void *to, struct disk_range range);
void disk_store_write(struct disk_store *s, struct stream *stream, const void *from, struct disk_range range);

// The same, blocking, for loading and saving a state. Return 0, or -1 after logging.
int disk_store_load(struct disk_store *s, void *to, struct disk_range range);
int disk_store_save(struct disk_store *s, const void *from, struct disk_range range);

// Bytes moved since the store was created.
struct disk_count {
    uint64_t read_bytes, written_bytes;
};
void disk_store_count(const struct disk_store *s, struct disk_count *out);

// Returns the fallback in use (no O_DIRECT, no io_uring) and why, or NULL. The store owns the text.
const char *disk_store_remark(const struct disk_store *s);
// Returns the path by which another program can open the file while the store exists: "/proc/PID/fd/N" (malloc'd).
char *disk_store_path(const struct disk_store *s);
bool disk_store_direct(const struct disk_store *s);
enum disk_engine disk_store_engine(const struct disk_store *s);  // the one in use

#endif
