// Hugging Face directories: config.json + model.safetensors (one file, or shards with an index). Reading converts
// Hugging Face's tensor names and shapes to ours (hf_parts) and transposes GPT-2's Conv1D. Writing does the
// reverse, so that `transformers` loads what a run wrote. A tied head is not written.
//
// A directory of peft has a LoRA adapter alone (hf_adapter.h). It is read as its base model's directory, with the
// adapter's tensors in addition.
#ifndef STARRING_SHARED_HF_HF_DIR_H
#define STARRING_SHARED_HF_HF_DIR_H

#include "kernels/dtype.h"
#include "shared/core/unit.h"
#include "shared/hf/families.h"
#include "shared/model/spec.h"

// Checks a path that is given as a model, before anything in it is read. Returns 0 if it may be one: a config.json, or a directory with one and with weights in safetensors, or an
// adapter's directory.
// Returns -1 after logging what the path is and what to do: a file of weights only, a directory whose weights did
// not arrive, are elsewhere or are in an unsupported form, an adapter, a checkpoint of another program, a run's
// directory. Only the path of a config.json gives random weights.
int hf_look(const char *path);

struct hf_reader;
// Opens a directory of weights. Returns NULL after logging the file and the tensor (missing, wrong shape or dtype,
// truncated, inconsistent header). s must come from hf_settle. Names may have the prefixes of wrappers
// (torch.compile, DDP, FSDP, PEFT), and may lack the family's prefix. Every tensor of the layout is checked before
// this returns. A directory without weights is an error, too.
struct hf_reader *hf_open(const char *dir, const struct model_spec *s, const struct layout *l);
// Whether dir is a directory with an index, or with *.safetensors other than Mistral's own, or with an adapter.
bool hf_has_weights(const char *dir);
// Whether dir has an adapter's adapter_config.json, and not config.json and weights of a whole model.
bool hf_is_adapter(const char *dir);
// Corrects the model of a directory's config.json by its weights. If embedding and head are two different matrices
// in the files, the model is untied, even if config.json ties it, as in transformers. Checks every tensor, as
// hf_open does, and warns of unused ones. Returns 0, or -1 after logging file and tensor.
int hf_settle(const char *dir, struct model_spec *s);
// Returns the type of the embedding's tensor in the file; fp32 for fp64.
enum dtype hf_dtype(const struct hf_reader *r);
// Reads unit u of the model's own layout as fp32 (n_pad), with zeros in gaps, and in adapters if the files have none.
// Returns 0, or -1 after logging a tensor that has NaN or an infinity.
int hf_read_unit(struct hf_reader *r, int u, float *out);
// The initial weights of unit u of the model's own layout: those of the files, or without files (r NULL) drawn from the
// seed. Adapters that the files do not have are drawn in any case.
int hf_initial_unit(struct hf_reader *r, const struct layout *l, int u, uint64_t seed, float *out);
void hf_close(struct hf_reader **r);

struct hf_writer;
// Creates DIR with config.json and a model.safetensors of type dt. Units are written in order 0..count-1. The file
// is complete (renamed to its name) only after hf_writer_finish. For the layout of LoRA's trained units these are
// adapter_config.json and adapter_model.safetensors; a model's own layout is written without its adapters.
struct hf_writer *hf_writer_create(const char *dir, const struct model_spec *s, const struct layout *l,
                                   enum dtype dt);
// Names the base model of an adapter: its directory, or an adapter's directory of the same base.
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
    int64_t rows;      // rows of our tensor that it fills, after those of the part before
    bool transposed;
};

// Lists the parts of tensor t of unit u, in row order. Returns their number.
int hf_parts(const struct model_spec *s, const struct layout *l, int u, int t,
             struct hf_part parts[HF_MAX_PARTS]);

// ---- an identity of the weights' files, so that two machines can check that they have the same ones: "2 files,
// 548105171 bytes, xxh64 0123456789abcdef" (malloc'd). It covers the files' names, sizes and samples: 256 samples
// of 64 KiB, spread evenly over each file, with its start and end; all of a file of up to 16 MiB. Other weights
// differ in almost every byte, so samples detect them. Samples can miss a few bytes that were changed by hand in a
// larger file. A file that cannot be read counts as empty; hf_open will report it. Returns NULL if the directory
// has no such file.
char *hf_files_identity(const char *dir);

#endif
