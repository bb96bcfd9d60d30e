// The steps that an interruption could not keep: a process was killed just before, or while the last checkpoint was written.
#ifndef STARRING_SHARED_LAUNCH_STEPS_LOST_H
#define STARRING_SHARED_LAUNCH_STEPS_LOST_H

#include <stdint.h>

// Says which checkpoint of the run directory is the newest, if steps were done after it; else nothing.
void steps_lost_say(const char *dir, int64_t done);

#endif
