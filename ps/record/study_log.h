// Lines on their way into a file that a shard must not wait for: the shard adds them, a thread of the log's own writes them.
//
// Threads   study_log_add: one; the rest: the server's main thread. Blocking: open and close.
// Memory    What a disk that is slow has not taken yet, up to a bound: behind it lines are lost, as those that a disk refuses.
//           Nothing is written behind the first that is.
#ifndef STARRING_PS_RECORD_STUDY_LOG_H
#define STARRING_PS_RECORD_STUDY_LOG_H

#include <stdint.h>

struct study_log;
struct study_log *study_log_open(const char *path);  // NULL: errno says why
// step: what the line is of.
void study_log_add(struct study_log *l, const char *line, int64_t step);
// The errno of the first lines that are lost, and the step of the first of them; 0: none is.
int study_log_lost(struct study_log *l, int64_t *step);
// Everything is in the file, or lost: then the errno, and *step as above; 0: only the file's end was.
int study_log_close(struct study_log **l, int64_t *step);

#endif
