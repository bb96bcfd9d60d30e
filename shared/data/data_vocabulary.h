// Whether the data's tokens are of the model's vocabulary: text is bytes; a token file's tokenizer is what
// its sidecar (sidecar.h) says.
#ifndef STARRING_SHARED_DATA_DATA_VOCABULARY_H
#define STARRING_SHARED_DATA_DATA_VOCABULARY_H

#include <stdint.h>

#include "shared/data/data_stream.h"

struct vocabulary {
    const char *model;      // preset, config.json or directory, as given
    int32_t size;           // V of the model
    const char *tokenizer;  // data.tokenizer: "byte" takes text for any model; NULL as "auto"
};

// Checks one opened stream; path: as the user gave it. 0, or -1 after saying what does not go together and
// the command that helps:
//   text        the model's vocabulary must be bytes (tokenizer_is_bytes)
//   a sidecar   its tokenizer must have no more entries than the model; its files must be those of the
//               model's directory where that has them; else it may have at most 1023 entries less, the
//               padding of published models
//   no sidecar  nothing here: data_open compares every token with V
int vocabulary_check(const struct vocabulary *v, const char *path, const struct token_stream *s);

#endif
