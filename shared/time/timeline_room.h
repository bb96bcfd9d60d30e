// How many records a timeline has room for, known before it is made: it grows with units and micro-batches, up to a bound.
#ifndef STARRING_SHARED_TIME_TIMELINE_ROOM_H
#define STARRING_SHARED_TIME_TIMELINE_ROOM_H

#include "shared/time/timeline.h"

#define TIMELINE_STEPS        (TIMELINE_LATE + TIMELINE_KEPT + 1)  // that it keeps at once
#define TIMELINE_RECORD_BYTES 320                                  // at most, all arrays together

// Places of each array. Steps of very many micro-batches lose what finds no room: their time counts as the host's.
size_t timeline_room(const struct layout *l, int64_t micro_batches);
// Host memory of all places.
size_t timeline_bytes(const struct layout *l, int64_t micro_batches);

#endif
