#include "shared/train/overflow.h"

#include <stdio.h>
#include <stdlib.h>

#include "shared/core/error.h"
#include "shared/model/grad_watch.h"

enum { WHERE_BYTES = 320 };

// found[r]: 1 + the first tensor of rank r with values that are not finite, 0: none. elements: likewise.
static void describe(const struct topology *t, const double *found, const double *elements, char *where) {
    int first = -1, others = 0, used = 0;
    for (int r = 0; r < t->size; r++) {
        if (found[r] <= 0) continue;
        if (first < 0)
            first = r;
        else
            others++;
    }
    if (first < 0 && t->size == 1) return;
    if (first < 0) {
        snprintf(where, WHERE_BYTES,
                 "each rank's own gradient is finite, and the sum over the %d ranks is not; ", t->size);
        return;
    }
    used = snprintf(where, WHERE_BYTES, "rank %d has %.0f such values in %s, its first such tensor", first,
                    elements[first], grad_watch_name(t->layout, (int64_t)found[first] - 1));
    if (others > 0)
        used += snprintf(where + used, (size_t)(WHERE_BYTES - used), ", and %d other rank%s too", others,
                         others > 1 ? "s have some" : " has some");
    snprintf(where + used, (size_t)(WHERE_BYTES - used), "; ");
}

int overflow_end(struct topology *t, struct model *m, const struct scaler *s, const struct scaler_config *c) {
    bool alone = t->plan.alone || t->plan.in_part;
    char where[WHERE_BYTES] = "";
    struct grad_watched own;
    if (grad_watch_read(m, &own)) return scaler_ended(s, c, "");
    double *found = xcalloc(2 * (size_t)t->size, sizeof *found);
    found[t->rank] = (double)(own.tensor + 1);
    found[t->size + t->rank] = (double)own.elements;
    bool told = alone || !topology_sum(t, found, 2 * t->size);
    if (told && (!alone || own.tensor >= 0)) describe(t, found, found + t->size, where);
    free(found);
    return scaler_ended(s, c, where);
}
