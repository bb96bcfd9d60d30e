// A curve as DeepSpeed's csv_monitor leaves it: "step,NAME", then a line for each step, ended as Python's csv ends lines
// (RFC 4180). Lines go out whole.
//
// Threads   One.
#ifndef STARRING_SHARED_MONITOR_CSV_FILE_H
#define STARRING_SHARED_MONITOR_CSV_FILE_H

#include <stdint.h>

struct csv_file;

// dir/NAME.csv for the tag "Train/Samples/lr", NAME with '_' for '/' and ' '; its lines stay, and what follows is added.
// from > 0: but those of later steps go, which a run that goes on from there writes again. NULL after fail().
struct csv_file *csv_file_open(const char *dir, const char *tag, int64_t from);
// 0, or -1 with errno.
int csv_file_line(struct csv_file *f, int64_t step, double value);
const char *csv_file_path(const struct csv_file *f);
int csv_file_close(struct csv_file **f);  // 0, or -1 with errno

#endif
