// Where weights come from: --model's directory, and the files next to the weights.
#ifndef STARRING_SHARED_GENERATE_SOURCE_H
#define STARRING_SHARED_GENERATE_SOURCE_H

#include <stdbool.h>
#include <stdint.h>

struct generate_source {
    char *dir;              // holds config.json and *.safetensors
    int64_t train_seq;      // sequence length of the run that trained the weights; 0: not from a run
    bool trained_on_bytes;  // the run used --tokenizer byte, for any vocabulary
    int32_t *
        end;  // end-of-text ids: generation_config.json's eos_token_id, else config.json's, else the family's
    int end_count;
};

// given: a Hugging Face directory with weights, or a run directory, of which weights/ is used. Returns 0, or -1 after
// naming what is missing. Call source_close in both cases.
int source_open(struct generate_source *s, const char *given);
// If the files name no end-of-text token, uses this one, of the model's family; -1: it has none.
void source_end_by(struct generate_source *s, int32_t token);
void source_close(struct generate_source *s);

#endif
