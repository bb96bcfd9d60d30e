// The input of `starring generate`: the directory with the weights (--model) and the prompt.
#ifndef STARRING_SHARED_INFER_GENERATE_INPUT_H
#define STARRING_SHARED_INFER_GENERATE_INPUT_H

#include <stdbool.h>
#include <stdint.h>

// ---------------------------------------------------------------- the weights, and the files next to them
struct generate_source {
    char *dir;              // holds config.json and *.safetensors, or an adapter
    char *base;             // holds config.json: dir, or the directory of the adapter's base model
    char *tokenizer;        // holds the tokenizer's files, if there are any
    int64_t train_seq;      // sequence length of the run that trained the weights; 0: not from a run
    bool trained_on_bytes;  // the run used --tokenizer byte, for any vocabulary
    int32_t *
        end;  // end-of-text ids: generation_config.json's eos_token_id, else config.json's, else the family's
    int end_count;
};

// given: a Hugging Face directory with weights, or a run directory, of which weights/ is used. Returns 0, or -1 after
// naming what is missing. Call source_close in both cases.
int source_open(struct generate_source *s, const char *given);
// Sets the end-of-text token of the model's family, which is used only if the files name none; -1: the family has none.
void source_end_by(struct generate_source *s, int32_t token);
void source_close(struct generate_source *s);

// ---------------------------------------------------------------- the prompt: bytes of a text, or token ids
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
