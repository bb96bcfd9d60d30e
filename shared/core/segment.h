// Memory that processes of one host share. It is a memfd, so no name in a file system can be left over. The kernel
// frees the pages when the last process that maps them ends, in any way.
//
//     | head: magic, cookie, bytes | the owner's data ..                              |
//     0                            SEGMENT_HEAD                                       bytes
//
// The owner sends its peer the segment's name, a line of text: pid, file descriptor, bytes, cookie, boot id. The
// peer opens /proc/PID/fd/FD. This needs the same host, the same user and the owner's pid namespace. On another host
// the same pid and descriptor may be an unrelated file; the boot id, the seals that fix the size, and a random cookie in
// the head detect this.
//
// Ownership   The owner keeps its descriptor open while peers may still open the segment. A mapping stays valid
//             after the other side has closed the segment or ended.
// Threads     None of its own. The users agree by messages which of them writes which byte at which time.
// Errors      segment_create logs. segment_open stores the reason in why and logs nothing: its caller may use tcp instead.
#ifndef STARRING_SHARED_CORE_SEGMENT_H
#define STARRING_SHARED_CORE_SEGMENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SEGMENT_HEAD     ((size_t)4096)  // bytes; no supported machine has larger pages
#define SEGMENT_NAME_MAX 160
#define SEGMENT_WHY_MAX  200

struct segment {
    char *base;  // NULL: none
    size_t bytes;
    int fd;  // -1: none
    uint64_t cookie;
};

enum segment_use { SEGMENT_READ, SEGMENT_WRITE };

// Creates a segment. bytes include the head and are rounded up to pages. It is zeros; only the head's page is
// touched. Returns 0, or -1 after logging.
int segment_create(struct segment *s, size_t bytes);
// Writes the name that is sent to the peer.
void segment_name(const struct segment *s, char out[SEGMENT_NAME_MAX]);
// Maps the segment of that name. Returns 0, or -1 with *s empty and the reason in why.
int segment_open(struct segment *s, const char *name, enum segment_use use, char why[SEGMENT_WHY_MAX]);
// Maps [offset, offset + bytes) of an open segment once more, read-only, at the address `at`, and replaces the
// mapping there. offset and at are multiples of a page. Returns 0, or -1 after logging.
int segment_map_at(const struct segment *s, void *at, size_t offset, size_t bytes);
// Returns whether [offset, offset + bytes) lies in the segment, after its head.
bool segment_holds(const struct segment *s, uint64_t offset, uint64_t bytes);
// Maps a segment for writing, whose descriptor this process inherited from the owner. Returns 0, or -1 after
// logging.
int segment_adopt(struct segment *s, int fd);
static inline void *segment_data(const struct segment *s) { return s->base + SEGMENT_HEAD; }
void segment_close(struct segment *s);  // does nothing with an empty one

size_t segment_pages(size_t bytes);  // rounded up to pages

#endif
