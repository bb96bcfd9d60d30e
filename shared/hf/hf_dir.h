// Hugging Face directories: config.json + model.safetensors (one file, or shards with an index). Reading converts
// Hugging Face's tensor names and shapes to ours (hf_parts) and transposes GPT-2's Conv1D. Writing does the
// reverse, so that `transformers` loads what a run wrote. A tied head is not written.
//
// A directory of peft has only a LoRA adapter (hf_adapter.h). It is read as the directory of its base model, with the
// adapter's tensors in addition.
#ifndef STARRING_SHARED_HF_HF_DIR_H
#define STARRING_SHARED_HF_HF_DIR_H

#include "kernels/dtype.h"
#include "shared/core/unit.h"
#include "shared/hf/families.h"
#include "shared/model/spec.h"

// Checks a path that is given as a model, before anything in it is read. Returns 0 if it may be a model: a config.json, a
// directory with one and with weights in safetensors, or an adapter's directory. Returns -1 after logging what the path is
// and what to do: a file of weights only, a directory whose weights are incomplete, are in another directory or have an
// unsupported format, a checkpoint of another program, a run's directory. A directory must have weights: only the path of
// a config.json itself means random weights.
int hf_look(const char *path);

struct hf_reader;
// Opens a directory of weights. Returns NULL after logging the file and the tensor (missing, wrong shape or dtype,
// truncated, inconsistent header). s must come from hf_settle. Names may have the prefixes of wrappers
// (torch.compile, DDP, FSDP, PEFT), and the family's prefix may be missing. Every tensor of the layout is checked before
// this returns. A directory without weights is an error, too.
struct hf_reader *hf_open(const char *dir, const struct model_spec *s, const struct layout *l);
// Returns whether dir has weights: an index, *.safetensors other than those of Mistral's own format, or an adapter.
bool hf_has_weights(const char *dir);
// Returns whether dir has an adapter_config.json, and not config.json and the weights of a whole model.
bool hf_is_adapter(const char *dir);
// Compares the model of config.json with the directory's weights. If embedding and head are two different matrices
// in the files, s becomes untied, even if config.json ties it, as in transformers. Checks every tensor, as
// hf_open does, and warns about unused tensors. Returns 0, or -1 after logging file and tensor.
int hf_settle(const char *dir, struct model_spec *s);
// Returns the type of the embedding's tensor in the file; fp32 for fp64.
enum dtype hf_dtype(const struct hf_reader *r);
// Reads unit u of the model's own layout as fp32 (n_pad), with zeros in gaps, and in adapters if the files have none.
// Returns 0, or -1 after logging a tensor that has NaN or an infinity.
int hf_read_unit(struct hf_reader *r, int u, float *out);
// Writes the initial weights of unit u of the model's own layout: those of the files, or random ones of the seed if there
// are no files (r NULL). Adapters that the files do not have are always random.
int hf_initial_unit(struct hf_reader *r, const struct layout *l, int u, uint64_t seed, float *out);
void hf_close(struct hf_reader **r);

struct hf_writer;
// Creates DIR with config.json and a model.safetensors of type dt. Units are written in order 0..count-1. The file
// has its name only after hf_writer_finish, when it is complete. For the layout of LoRA's trained units the two files are
// adapter_config.json and adapter_model.safetensors; a model's own layout is written without its adapters.
struct hf_writer *hf_writer_create(const char *dir, const struct model_spec *s, const struct layout *l,
                                   enum dtype dt);
// Sets the base model of the adapter that is written: its directory, or the directory of an adapter with the same base.
void hf_writer_base(struct hf_writer *w, const char *model);
int hf_write_unit(struct hf_writer *w, int u, const void *weights /* (n_pad) of dt, host */);
int hf_writer_finish(struct hf_writer **w);  // destroys w, also on failure
void hf_writer_discard(struct hf_writer **w);

// ---- which Hugging Face tensors a tensor of ours consists of, and the reverse. Pure functions.
//
//     wqkv ((H+2KV)D, C)  =  rows of  q_proj (HD, C) | k_proj (KVD, C) | v_proj (KVD, C)
//     w_gate_up (2F, C)   =  rows of  gate_proj (F, C) | up_proj (F, C)
//     GPT-2's matrices are Conv1D: stored as (in, out), ours is the transpose. All other tensors correspond one to one.
//
// The names are in the model's row of families.c. An adapter of LoRA is one part, as peft names it without its prefix
// "base_model.model.": "model.layers.3.self_attn.q_proj.lora_A.weight"; it is never transposed.
struct hf_part {
    char name[HF_NAME_MAX];  // "model.layers.3.self_attn.q_proj.weight"
    int dims;
    int64_t shape[2];  // as Hugging Face stores it
    int64_t rows;      // how many rows of our tensor it is, after the rows of the previous part
    bool transposed;
};

// Lists the parts of tensor t of unit u, in row order. Returns their number.
int hf_parts(const struct model_spec *s, const struct layout *l, int u, int t,
             struct hf_part parts[HF_MAX_PARTS]);

// ---- Returns an identity of the weights' files, so that two machines can check that they have the same files: "2 files,
// 548105171 bytes, xxh64 0123456789abcdef" (malloc'd). It hashes the files' names, sizes and samples: all of a file of up
// to 16 MiB, and 256 samples of 64 KiB, spread evenly from the start to the end, of a larger one. Other weights
// differ in almost every byte, so samples detect them. They can miss a few bytes that were changed by hand in a
// larger file. A file that cannot be read counts as empty; hf_open will report it. Returns NULL if the directory
// has no such file.
char *hf_files_identity(const char *dir);

#endif
