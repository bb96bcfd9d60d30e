// Prints a run's progress. It prints a headline, a line every steps_per_print steps (and the first and the last), and
// on a terminal a bar below them that is redrawn in place.
#ifndef STARRING_SHARED_REPORT_PROGRESS_H
#define STARRING_SHARED_REPORT_PROGRESS_H

#include <stdio.h>

#include "shared/config/config.h"
#include "shared/model/spec.h"
#include "shared/report/metrics.h"

struct progress;  // For use by one thread.

struct progress_options {
    FILE *file;     // not owned
    bool bar;       // file is a terminal
    int64_t first;  // steps done before this start
};

struct progress *progress_create(const struct progress_options *o);
void progress_start(struct progress *p, const struct config *c, const struct model_spec *s,
                    const struct layout *l);
void progress_step(struct progress *p, const struct step_record *r);
void progress_destroy(struct progress **p);  // Erases the bar.

#endif
