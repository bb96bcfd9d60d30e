// Hugging Face directories: config.json + model.safetensors (one file, or shards with an index).
// Reading maps Hugging Face's tensor names and shapes to ours (hf_parts) and transposes GPT-2's Conv1D;
// writing does the reverse, so that `transformers` loads what a run wrote. A tied head is left out of the
// file.
#ifndef STARRING_SHARED_HF_HF_DIR_H
#define STARRING_SHARED_HF_HF_DIR_H

#include "kernels/dtype.h"
#include "shared/core/unit.h"
#include "shared/hf/families.h"
#include "shared/model/spec.h"

struct hf_reader;
// NULL after naming the file and the tensor (missing, wrong shape or dtype, truncated, inconsistent header). s as hf_settle
// left it. Names may stand behind what wrappers put before them (torch.compile, DDP, FSDP, PEFT), and without the family's prefix.
// Every tensor of the layout is checked before this returns. "DIR has no weights" is an error too.
struct hf_reader *hf_open(const char *dir, const struct model_spec *s, const struct layout *l);
bool hf_has_weights(
    const char
        *dir);  // dir is a directory with *.safetensors, an adapter's and Mistral's own apart, or an index
// Corrects the model of a directory's config.json by its weights: a model whose embedding and head are two different
// matrices in the files is untied, whatever config.json says, as in transformers. Looks at every tensor, as hf_open does,
// and warns of those that are not used. 0, or -1 after naming file and tensor.
int hf_settle(const char *dir, struct model_spec *s);
// The type of the embedding's file tensor; fp32 for fp64.
enum dtype hf_dtype(const struct hf_reader *r);
// Unit u as fp32 (n_pad), zeros in gaps. 0, or -1 after naming a tensor that has NaN or an infinity.
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

// ---- which Hugging Face tensors a tensor of ours is made of, and the reverse. Pure functions.
//
//     wqkv ((H+2KV)D, C)  =  rows of  q_proj (HD, C) | k_proj (KVD, C) | v_proj (KVD, C)
//     w_gate_up (2F, C)   =  rows of  gate_proj (F, C) | up_proj (F, C)
//     GPT-2's matrices are Conv1D: stored (in, out), ours is the transpose; everything else is one to one.
//
// The names are the model's row of families.c.
#define HF_NAME_MAX 96

struct hf_part {
    char name[HF_NAME_MAX];  // "model.layers.3.self_attn.q_proj.weight"
    int dims;
    int64_t shape[2];  // as Hugging Face stores it
    int64_t rows;      // of our tensor that it fills, following those of the part before
    bool transposed;
};

// The parts of tensor t of unit u, in row order; returns how many.
int hf_parts(const struct model_spec *s, const struct layout *l, int u, int t,
             struct hf_part parts[HF_MAX_PARTS]);

// True for buffers that files of this family carry beside the weights (masks, rotary tables).
bool hf_is_buffer(const char *name);

// ---- the weights' files as one text, so that two machines see whether they have the same ones:
// "2 files, 548105171 bytes, xxh64 0123456789abcdef" (malloc'd): of their names, sizes and samples, 256 of 64 KiB spread
// evenly over each file, its beginning and end among them; all of a file of up to 16 MiB. Other weights differ in almost
// every byte, so samples tell them apart; what they can miss is a larger file in which a few places were changed by hand.
// A file that cannot be read counts as empty: hf_open will name it. NULL: the directory has no such file.
char *hf_files_identity(const char *dir);

#endif
