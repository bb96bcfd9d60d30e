#include "shared/core/topology.h"

void topology_destroy(struct topology **t) {
    if (!*t) return;
    (*t)->ops->destroy(*t);
    *t = NULL;
}
