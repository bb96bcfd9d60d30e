// The file of a disk_store: made without a name, with all of its room.
#ifndef STARRING_SHARED_OFFLOAD_DISK_FILE_H
#define STARRING_SHARED_OFFLOAD_DISK_FILE_H

#include <stddef.h>

// What DeepSpeed's section "aio" leaves to us when it is not there (docs/ring.md, Offload: the store).
#define DISK_BLOCK_BYTES ((size_t)1 << 20)
#define DISK_DEPTH       16
#define DISK_DEPTH_MAX   1024

enum disk_engine {
    DISK_ENGINE_AUTO,  // io_uring, or threads where the kernel forbids it
    DISK_ENGINE_URING,
    DISK_ENGINE_THREADS,
};

struct disk_store_options {
    const char *dir;     // where the file lies; made if only its last part is missing
    const char *key;     // the configuration key that named dir, for errors; NULL: not told
    const char *label;   // "rank 1": named in errors; NULL: nothing
    size_t bytes;        // of the file, rounded up to DISK_ALIGN; > 0
    size_t block_bytes;  // aio.block_size: of a piece, a multiple of DISK_ALIGN; 0: DISK_BLOCK_BYTES
    int depth;           // aio.queue_depth: pieces under way for a call, 1 .. DISK_DEPTH_MAX; 0: DISK_DEPTH
    enum disk_engine engine;
};

// The descriptor of a new file of o->bytes (rounded up), or -1 after logging directory, bytes wanted and free. *why_cached:
// NULL, or why it is not O_DIRECT. Blocking: room for the file is taken on the disk.
int disk_file_create(const struct disk_store_options *o, const char **why_cached);

#endif
