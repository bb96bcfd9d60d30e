// The star as the program uses it (shared/core/topology_row.h). Its roles as commands: ps/role_command.h.
#ifndef STARRING_PS_STAR_H
#define STARRING_PS_STAR_H

#include "shared/core/topology_row.h"

extern const struct topology_row topology_star;

#endif
