// Why all ranks of a job must end: the first that says it is heard. It lies in memory that ranks and their launcher share, or in a
// process's own, where it comes as a word (decentral/collective/rank_pulse.h).
#ifndef STARRING_SHARED_LAUNCH_LAST_WORD_H
#define STARRING_SHARED_LAUNCH_LAST_WORD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>

#define LAST_WORD_BYTES 2048

// Zeros: nobody has said anything.
struct last_word {
    _Atomic int state;  // 1: it is being written; 2: it is there
    _Atomic bool lost;  // a rank does not come: what is said is as good as its death
    char text[LAST_WORD_BYTES];
    _Atomic int
        stopped;  // 1 + the rank of one that a signal has stopped for a while, as their launcher sees; 0: of none
};

// Whether it is this one that is heard. Async-signal-safe is neither.
static inline bool last_word_say(struct last_word *w, const char *text) {
    int silent = 0;
    if (!atomic_compare_exchange_strong(&w->state, &silent, 1)) return false;
    snprintf(w->text, sizeof w->text, "%s", text);
    atomic_store(&w->state, 2);
    return true;
}

static inline const char *last_word(const struct last_word *w) {  // NULL: nobody has said it
    return atomic_load(&w->state) == 2 ? w->text : NULL;
}

#endif
