// The last word: the reason why all ranks of a job must end; only the first one counts. It is in memory that ranks
// share, or in a process's own, to which it is sent as a message (rank_lives.h).
#ifndef STARRING_DECENTRAL_COLLECTIVE_LAST_WORD_H
#define STARRING_DECENTRAL_COLLECTIVE_LAST_WORD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>

#define LAST_WORD_BYTES 2048

// All zeros: no rank has written a reason.
struct last_word {
    _Atomic int state;  // 1: it is being written; 2: it is complete
    char text[LAST_WORD_BYTES];
};

// last_word_take returns whether this caller is the first; it then calls last_word_say. Neither is async-signal-safe.
static inline bool last_word_take(struct last_word *w) {
    int silent = 0;
    return atomic_compare_exchange_strong(&w->state, &silent, 1);
}

static inline void last_word_say(struct last_word *w, const char *text) {
    snprintf(w->text, sizeof w->text, "%s", text);
    atomic_store(&w->state, 2);
}

static inline const char *last_word(const struct last_word *w) {  // NULL: none was written
    return atomic_load(&w->state) == 2 ? w->text : NULL;
}

#endif
