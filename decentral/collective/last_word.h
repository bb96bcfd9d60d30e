// Why all ranks of a job must end: the first that says it is heard. It lies in memory that ranks share, or in a process's
// own, where it comes as a word (rank_lives.h).
#ifndef STARRING_DECENTRAL_COLLECTIVE_LAST_WORD_H
#define STARRING_DECENTRAL_COLLECTIVE_LAST_WORD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>

#define LAST_WORD_BYTES 2048

// Zeros: nobody has said anything.
struct last_word {
    _Atomic int state;  // 1: it is being written; 2: it is there
    char text[LAST_WORD_BYTES];
};

// Whether it is this one that is heard, and says it then. Async-signal-safe is neither.
static inline bool last_word_take(struct last_word *w) {
    int silent = 0;
    return atomic_compare_exchange_strong(&w->state, &silent, 1);
}

static inline void last_word_say(struct last_word *w, const char *text) {
    snprintf(w->text, sizeof w->text, "%s", text);
    atomic_store(&w->state, 2);
}

static inline const char *last_word(const struct last_word *w) {  // NULL: nobody has said it
    return atomic_load(&w->state) == 2 ? w->text : NULL;
}

#endif
