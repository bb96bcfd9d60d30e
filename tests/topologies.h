// The topologies of the program, as starring.c lists them.
#ifndef STARRING_TESTS_TOPOLOGIES_H
#define STARRING_TESTS_TOPOLOGIES_H

#include "decentral/ring.h"
#include "ps/star.h"
#include "shared/launch/local.h"

static const struct topology_table topologies = {.row = {&topology_local, &topology_star, RING_TOPOLOGIES}};

#endif
