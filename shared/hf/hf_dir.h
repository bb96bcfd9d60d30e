// Hugging Face directories: config.json + model.safetensors (one file, or shards with an index).
// Reading maps Hugging Face's tensor names and shapes to ours (hf_map.h) and transposes GPT-2's Conv1D;
// writing does the reverse, so that `transformers` loads what a run wrote. A tied head is left out of the
// file.
#ifndef STARRING_SHARED_HF_HF_DIR_H
#define STARRING_SHARED_HF_HF_DIR_H

#include "kernels/dtype.h"
#include "shared/core/unit.h"
#include "shared/model/spec.h"

struct hf_reader;
// NULL after naming the file and the tensor (missing, wrong shape or dtype, truncated, inconsistent header).
// Every tensor of the layout is checked before this returns. "DIR has no weights" is an error too.
struct hf_reader *hf_open(const char *dir, const struct model_spec *s, const struct layout *l);
bool hf_has_weights(const char *dir);  // dir is a directory with *.safetensors or an index
// The type of the embedding's file tensor; fp32 for fp64.
enum dtype hf_dtype(const struct hf_reader *r);
// Unit u as fp32 (n_pad), zeros in gaps.
int hf_read_unit(struct hf_reader *r, int u, float *out);
void hf_close(struct hf_reader **r);

struct hf_writer;
// Creates DIR with config.json and a model.safetensors of type dt, filled unit by unit, in order
// 0..count-1; complete (renamed into place) only at hf_writer_finish.
struct hf_writer *hf_writer_create(const char *dir, const struct model_spec *s, const struct layout *l,
                                   enum dtype dt);
int hf_write_unit(struct hf_writer *w, int u, const void *weights /* (n_pad) of dt, host */);
int hf_writer_finish(struct hf_writer **w);  // destroys w also on failure
void hf_writer_discard(struct hf_writer **w);

#endif
