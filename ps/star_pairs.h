// The settings of a star that exclude each other, and why: one table of pairs. Limits of a single setting are checked
// where it is read (shared/config/config_resolve.c, star.c).
#ifndef STARRING_PS_STAR_PAIRS_H
#define STARRING_PS_STAR_PAIRS_H

#include "shared/config/config.h"

// 0, or -1 after fail("ONE: with OTHER why: what to do").
int star_pairs_check(const struct config *c);

#endif
