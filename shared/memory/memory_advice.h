// What to change about a run that does not fit: each proposal has been predicted and does fit.
#ifndef STARRING_SHARED_MEMORY_MEMORY_ADVICE_H
#define STARRING_SHARED_MEMORY_MEMORY_ADVICE_H

#include "shared/memory/memory_room.h"

struct memory_question {
    const struct job *job;
    const struct memory_part *part;
    const struct memory_room *room;
};

// Lines (malloc'd), each with a newline: what fits with one change (fewer workers, a higher stage, a smaller
// micro-batch, bf16), else with several, else that none does.
char *memory_advice(const struct memory_question *q);

#endif
