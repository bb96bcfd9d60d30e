#include "ps/worker/credits.h"

bool credits_allow(const struct credits *c, size_t bytes, size_t held_before) {
    size_t under_way = c->taken - c->held;
    if (!under_way && !held_before) return c->taken <= c->most;
    return under_way + held_before + bytes <= c->most / 2 && c->taken + bytes <= c->most;
}
