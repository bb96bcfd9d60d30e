// Files that hold curves, point by point, as DeepSpeed's csv_monitor and as `tensorboard` read them. A point goes out in one
// write, so that a reader who follows the file never meets a torn one.
//
// CSV        "step,NAME", then a line for each step, ended as Python's csv ends lines (RFC 4180). A file has one curve.
// Events     Records, little-endian, of all curves:
//
//     | length, 8 bytes | masked crc32c of it, 4 | proto/events.proto's Event, length bytes | masked crc32c of them, 4 |
//
//            The mask (rotated right by 15 bits, plus 0xa282ead8) is TensorFlow's, core/lib/hash/crc32c.h and
//            core/lib/io/record_writer.cc; crc32c is Castagnoli's polynomial (RFC 3720, B.4).
//
// Threads   One.
// Errors    A file that cannot be opened: NULL after fail(). A line that cannot be written: -1 with errno.
#ifndef STARRING_SHARED_MONITOR_CURVE_FILE_H
#define STARRING_SHARED_MONITOR_CURVE_FILE_H

#include <stdint.h>

struct curve_file;

// dir/NAME.csv for the tag "Train/Samples/lr", NAME with '_' for '/' and ' '; its lines stay, and what follows is added.
// from > 0: but those of later steps go, which a run that goes on from there writes again.
struct curve_file *csv_file_open(const char *dir, const char *tag, int64_t from);
int csv_file_point(struct curve_file *f, int64_t step, double value);

// A new file events.out.tfevents.SECONDS.HOST.PID in dir, which exists. from > 0: events from that step on that other
// files of the directory hold no longer count.
struct curve_file *event_file_create(const char *dir, int64_t from);
int event_file_point(struct curve_file *f, const char *tag, int64_t step, double value);

const char *curve_file_path(const struct curve_file *f);
int curve_file_close(struct curve_file **f);

#endif
