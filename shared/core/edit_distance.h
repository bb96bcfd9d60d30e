// How far apart two words are: what "did you mean" and the nearest known name go by.
#ifndef STARRING_SHARED_CORE_EDIT_DISTANCE_H
#define STARRING_SHARED_CORE_EDIT_DISTANCE_H

#include <stddef.h>

// Insertions, deletions and changes of a character that turn word into name (Wagner & Fischer 1974). Only the
// first 64 characters of name count.
size_t edit_distance(const char *word, const char *name);

#endif
