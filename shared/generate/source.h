// The place that weights come from: --model's directory, and what lies beside the weights.
#ifndef STARRING_SHARED_GENERATE_SOURCE_H
#define STARRING_SHARED_GENERATE_SOURCE_H

#include <stdbool.h>
#include <stdint.h>

struct generate_source {
    char *dir;              // with config.json and *.safetensors
    int64_t train_seq;      // tokens of a sequence in the run that made the weights; 0: not a run's
    bool trained_on_bytes;  // by the run's --tokenizer byte, whatever the model's vocabulary is
    int32_t *
        end;  // end-of-text ids: generation_config.json's eos_token_id, else config.json's, else the family's
    int end_count;
};

// given: a Hugging Face directory with weights, or a run directory, whose weights/ is taken. 0, or -1 after
// naming what is missing. source_close either way.
int source_open(struct generate_source *s, const char *given);
// Where the files name no end of text, that of the model they are of; -1: it has none.
void source_end_by(struct generate_source *s, int32_t token);
void source_close(struct generate_source *s);

#endif
