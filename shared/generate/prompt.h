// The prompt to continue: bytes of a text, or token ids.
#ifndef STARRING_SHARED_GENERATE_PROMPT_H
#define STARRING_SHARED_GENERATE_PROMPT_H

#include <stdbool.h>
#include <stdint.h>

struct prompt {
    bool bytes;  // ids are the bytes of a text
    int32_t *ids;
    int64_t count;  // >= 1 after prompt_read
};

// Reads the prompt from text, or from ids as text (separated by commas or white space). One of the two is NULL. "-":
// standard input to its end, at most 16 MiB. Every id must be below vocab. Returns 0, or -1 after naming the flag and
// the error. Call prompt_free in both cases.
int prompt_read(struct prompt *p, const char *text, const char *ids, int32_t vocab);
void prompt_free(struct prompt *p);

#endif
