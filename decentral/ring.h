// The ring as the program sees it (shared/core/topology_row.h): its ranks are threads of one process, or processes
// that mpirun starts.
#ifndef STARRING_DECENTRAL_RING_H
#define STARRING_DECENTRAL_RING_H

#include "shared/core/topology_row.h"

extern const struct topology_row topology_ring;

#endif
