// Standard output, which may be closed, left by its reader, or on a disk that is full. None of these is a reason to end a
// run: what it is worth is in its files.
#ifndef STARRING_SHARED_CORE_OUTPUT_H
#define STARRING_SHARED_CORE_OUTPUT_H

#include <stdbool.h>

// First thing in main: descriptors 0, 1 and 2 that the shell closed (>&-) are opened on /dev/null. The next file opened
// would take their number, and what is printed would land in it.
void output_open_streams(void);

// Last thing in main: the exit status, given the command's. What a full disk lost must not look like success: an error.
// A reader that left, as `| head -1` does, chose to: a warning, if a run had more to say to it.
int output_end(int status, bool run);

// The two messages. output_fail returns -1.
void output_warn_unread(void);
int output_fail(int why);  // errno; 0: not known

#endif
