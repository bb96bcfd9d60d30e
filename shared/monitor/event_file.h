// An event file as `tensorboard` reads it. Each record is
//
//     | length, 8 bytes | masked crc32c of it, 4 | proto/events.proto's Event, length bytes | masked crc32c of them, 4 |
//
// little-endian, and goes out in one write, so that a reader who follows the file never meets a torn one. The mask
// (rotated right by 15 bits, plus 0xa282ead8) is TensorFlow's, core/lib/hash/crc32c.h and core/lib/io/record_writer.cc;
// crc32c is Castagnoli's polynomial (RFC 3720, B.4).
//
// Threads   One.
#ifndef STARRING_SHARED_MONITOR_EVENT_FILE_H
#define STARRING_SHARED_MONITOR_EVENT_FILE_H

#include <stddef.h>
#include <stdint.h>

uint32_t crc32c(const void *data, size_t bytes);

struct event_file;

// A new file events.out.tfevents.SECONDS.HOST.PID in dir, which exists. from > 0: events from that step on that other
// files of the directory hold no longer count. NULL after fail().
struct event_file *event_file_create(const char *dir, int64_t from);
// 0, or -1 with errno.
int event_file_scalar(struct event_file *f, const char *tag, int64_t step, double value);
const char *event_file_path(const struct event_file *f);
int event_file_close(struct event_file **f);  // 0, or -1 with errno

#endif
