// The prompt to continue: bytes of a text, or token ids.
#ifndef STARRING_SHARED_GENERATE_PROMPT_H
#define STARRING_SHARED_GENERATE_PROMPT_H

#include <stdbool.h>
#include <stdint.h>

struct prompt {
    bool bytes;  // ids are bytes of a text
    int32_t *ids;
    int64_t count;  // >= 1 once read
};

// text, or ids as text (separated by commas or white space), "-": standard input to its end, at most 16 MiB. One of both is
// NULL. Every id is below vocab. 0, or -1 after naming the flag and what is wrong; prompt_free either way.
int prompt_read(struct prompt *p, const char *text, const char *ids, int32_t vocab);
void prompt_free(struct prompt *p);

#endif
