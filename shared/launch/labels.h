// Lines that other processes print, passed on to this one's standard output or error, with a label before each.
//
// Threads   One for each pipe. A line goes out at once and whole.
#ifndef STARRING_SHARED_LAUNCH_LABELS_H
#define STARRING_SHARED_LAUNCH_LABELS_H

#include <stdbool.h>

struct labels;

struct labels *labels_create(void);
// A pipe whose end for writing is returned, for a child; or -1 after logging. label: copied; "": lines as they are.
int labels_pipe(struct labels *l, const char *label, bool to_error);
// Waits until all writers have left, so long at most: what a child has started may keep its pipe.
void labels_destroy(struct labels **l, double seconds);

#endif
