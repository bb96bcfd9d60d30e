// Standard output, which may be closed, left by its reader, or on a disk that is full, and standard error, which may stand
// still. None of these is a reason to end a run: what it is worth is in its files.
#ifndef STARRING_SHARED_CORE_OUTPUT_H
#define STARRING_SHARED_CORE_OUTPUT_H

#include <stdbool.h>

// First thing in main: descriptors 0, 1 and 2 that the shell closed (>&-) are opened on /dev/null. The next file opened
// would take their number, and what is printed would land in it.
void output_open_streams(void);

// Last thing in main: the exit status, given the command's. A loss on a full disk must not look like success: it is an error.
// A reader that left, as `| head -1` does, chose to: a warning, if a run had more to say to it.
int output_end(int status, bool run);

// The two messages. output_fail returns -1.
void output_warn_unread(void);
int output_fail(int why);  // errno; 0: not known

// Between output_apart_begin and output_apart_end a thread writes the messages of this process (shared/core/background.h), for
// standard error may stand still (a pipe that nobody reads, Ctrl-S, a file on a disk that does) and the thread that says
// something goes on. A message that finds no room is left out, and counted. Where no thread can be had, nothing changes.
void output_apart_begin(void);
void output_apart_end(void);  // once all is written
// Waits until all is written, so long at most: before what never returns.
void output_apart_wait(double seconds);

#endif
