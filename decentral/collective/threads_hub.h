// What ranks that are threads of one process share. A failure of one rank aborts the whole hub.
#ifndef STARRING_DECENTRAL_COLLECTIVE_THREADS_HUB_H
#define STARRING_DECENTRAL_COLLECTIVE_THREADS_HUB_H

#include <stdbool.h>
#include <stddef.h>

struct threads_hub;
struct threads_hub *threads_hub_create(int size);  // NULL after logging
void threads_hub_destroy(struct threads_hub **h);  // after every collective of it
// Any thread. Ends the waits of every rank.
void threads_hub_abort(struct threads_hub *h, const char *why);
bool threads_hub_aborted(struct threads_hub *h, char *why, size_t why_bytes);  // why is written when true

#endif
