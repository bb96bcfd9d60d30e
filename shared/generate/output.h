// Printing a continuation: token by token on standard output, or as one JSON document.
#ifndef STARRING_SHARED_GENERATE_OUTPUT_H
#define STARRING_SHARED_GENERATE_OUTPUT_H

#include <stdio.h>

#include "shared/generate/generate.h"
#include "shared/generate/prompt.h"

// Bytes go out as they are, valid UTF-8 or not; a token beyond the bytes is special and
// is not shown. Ids go out in decimal, separated by spaces. The prompt comes first.
struct token_printer {
    FILE *f;
    bool bytes;
    bool begun;
};

void print_prompt(struct token_printer *p, const struct prompt *prompt);
// generate_options.on_token; ctx is a token_printer. Flushes; non-zero when it cannot be written.
int print_token(void *ctx, int32_t token);

struct generation {
    const char *model, *weights, *device;
    const char *cpu_kernel;  // how the CPU multiplied; NULL: another device did
    const struct generate_options *options;
    const struct prompt *prompt;
    const int32_t *ids;  // (count)
    int64_t count, window;
    bool ended;  // at an end-of-text token
    enum dtype dtype;
    double seconds;
};

// "text" and "prompt" (null for ids) have U+FFFD for bytes that are not UTF-8, which JSON cannot hold; "ids"
// are exact.
void print_generation_json(FILE *f, const struct generation *g);

#endif
