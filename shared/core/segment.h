// Memory that processes of one host share: a memfd, so that no name in a file system can be left behind and the
// kernel takes the pages back when the last process that maps them has ended, however it ended.
//
//     | head: magic, cookie, bytes | the owner's data ..                              |
//     0                            SEGMENT_HEAD                                       bytes
//
// The owner tells its peer a segment's name, a line of text: pid, file descriptor, bytes, cookie, boot id. The
// peer opens /proc/PID/fd/FD, which takes the same host, the same user and the owner's pid namespace. A name from
// elsewhere may fit a stranger's descriptor: the boot id, the seals that keep the size, and a random cookie in
// the head tell it apart.
//
// Ownership   The owner keeps its descriptor open while peers may still come. A mapping lives on after the other
//             side has closed or ended.
// Threads     None of its own. The users agree by messages on which of them writes which byte when.
// Errors      segment_create logs. segment_open writes why: its caller may have another way.
#ifndef STARRING_SHARED_CORE_SEGMENT_H
#define STARRING_SHARED_CORE_SEGMENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SEGMENT_HEAD     ((size_t)4096)  // bytes; no page is larger where this program runs
#define SEGMENT_NAME_MAX 160
#define SEGMENT_WHY_MAX  200

struct segment {
    char *base;  // NULL: none
    size_t bytes;
    int fd;  // -1: none
    uint64_t cookie;
};

enum segment_use { SEGMENT_READ, SEGMENT_WRITE };

// bytes: with the head, rounded up to pages. Zeros; no page but the head's is touched yet. 0, or -1 after logging.
int segment_create(struct segment *s, size_t bytes);
// The text that the peer is told.
void segment_name(const struct segment *s, char out[SEGMENT_NAME_MAX]);
// Maps the segment of that name. 0, or -1 with *s empty and the reason in why.
int segment_open(struct segment *s, const char *name, enum segment_use use, char why[SEGMENT_WHY_MAX]);
// Maps [offset, offset + bytes) of an open segment once more, read only, at `at`, in place of what was there.
// offset and at: multiples of a page. 0, or -1 after logging.
int segment_map_at(const struct segment *s, void *at, size_t offset, size_t bytes);
// Whether [offset, offset + bytes) lies in the segment, behind its head.
bool segment_holds(const struct segment *s, uint64_t offset, uint64_t bytes);
// Maps for writing the segment that a process has inherited from the owner by its descriptor. 0, or -1 after logging.
int segment_adopt(struct segment *s, int fd);
static inline void *segment_data(const struct segment *s) { return s->base + SEGMENT_HEAD; }
void segment_close(struct segment *s);  // nothing is done with an empty one

size_t segment_pages(size_t bytes);  // rounded up to pages

#endif
