// Which settings of a star do not go together, and why: one table of pairs. What a setting cannot be by itself is said where it is
// read (shared/config/config_resolve.c, star.c).
#ifndef STARRING_PS_STAR_PAIRS_H
#define STARRING_PS_STAR_PAIRS_H

#include "shared/config/config.h"

// 0, or -1 after fail("ONE: with OTHER why: what to do").
int star_pairs_check(const struct config *c);

#endif
