// What a person sees while a run goes on: a headline, a line every steps_per_print steps (and the first
// and the last), evaluations, and on a terminal a bar that is redrawn in place below them.
#ifndef STARRING_SHARED_REPORT_PROGRESS_H
#define STARRING_SHARED_REPORT_PROGRESS_H

#include <stdio.h>

#include "shared/train/train.h"

struct progress;  // one thread

struct progress_options {
    FILE *file;  // not owned
    bool bar;    // file is a terminal
};

struct progress *progress_create(const struct progress_options *o);
void progress_start(struct progress *p, const struct config *c, const struct model_spec *s, int64_t params);
void progress_step(struct progress *p, const struct step_record *r);
void progress_eval(struct progress *p, const struct eval_record *r);
void progress_destroy(struct progress **p);  // wipes the bar

// "512 B", "48.9 MiB", "29.2 GiB": MiB wherever it can be, three digits. Returns text.
const char *format_bytes(char text[24], double bytes);
// "1,234,567". Returns text.
const char *format_count(char text[32], int64_t n);

#endif
