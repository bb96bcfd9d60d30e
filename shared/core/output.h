// Standard output and standard error, which may fail or block. Output may be closed, left by its reader, or on a
// full disk; standard error may block. None of these ends a run, because the results are in files.
#ifndef STARRING_SHARED_CORE_OUTPUT_H
#define STARRING_SHARED_CORE_OUTPUT_H

#include <stdbool.h>

// The first call of main. Opens descriptors 0, 1 and 2 on /dev/null where the shell closed them (>&-). Otherwise
// the next file opened would get such a number, and printed text would land in it.
void output_open_streams(void);

// The last call of main. Returns the exit status, given the command's status. Output lost on a full disk is an
// error and must not look like success. A reader that left on purpose (`| head -1`) causes only a warning, if a run
// had more to print.
int output_end(int status, bool run);

// The two messages of output_end. output_fail returns -1.
void output_warn_unread(void);
int output_fail(int why);  // errno; 0: unknown

// From output_apart_begin to output_apart_end one thread writes all messages of this process
// (shared/core/background.h). Standard error may block (a pipe that nobody reads, Ctrl-S, a file on a slow disk);
// the threads that print do not wait for it. A message that does not fit the queue is dropped and counted. If no
// thread can be started, nothing changes.
void output_apart_begin(void);
void output_apart_end(void);  // after everything is written
// Waits until everything is written, at most `seconds`. For use before a call that never returns.
void output_apart_wait(double seconds);

#endif
