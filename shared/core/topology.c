#include "shared/core/topology.h"

#include <stdio.h>

size_t textbook_bytes(struct textbook t, int64_t params, int ranks) {
    return t.whole * (size_t)params + t.shared * (size_t)params / (size_t)ranks;
}

void textbook_text(char text[TEXTBOOK_TEXT], struct textbook t, char ranks) {
    int n = t.whole ? snprintf(text, TEXTBOOK_TEXT, "%zuP", t.whole) : 0;
    if (t.shared) snprintf(text + n, TEXTBOOK_TEXT - (size_t)n, "%s%zuP/%c", n ? "+" : "", t.shared, ranks);
}

void topology_destroy(struct topology **t) {
    if (!*t) return;
    (*t)->ops->destroy(*t);
    *t = NULL;
}

int step_plan_together(struct topology *t) {
    struct step_plan *p = &t->plan;
    p->slice = t->rank;
    p->first = p->handed_out + p->mean / t->size * p->slice;
    p->next = p->first + p->mean;
    return 1;
}

void step_plan_advance(struct topology *t, bool skipped) {
    struct step_plan *p = &t->plan;
    p->steps++;
    p->version += !skipped;
    if (p->partial) return;
    p->samples += skipped ? 0 : p->mean;
    p->handed_out += p->independent ? 0 : p->mean;
}

void step_plan_undo(struct topology *t) {
    t->plan.version--;
    t->plan.samples -= t->plan.mean;
}

int64_t step_plan_steps_of_run(const struct topology *t) {
    return t->plan.independent ? step_plan_handed_out(&t->plan) / (t->plan.mean * t->size) : t->plan.steps;
}
