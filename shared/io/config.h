// The resolved configuration of a run: DeepSpeed's JSON plus the sections model, data and
// parameter_server, then --set, then command-line flags. Plain data; strings are owned by the struct.
//
// JSON keys beside DeepSpeed's (all optional; the flag of the same name wins):
//   "model": "demo"                        | {"name": "demo"}
//   "data": "FILE|DIR"                     | {"path": .., "tokenizer": "byte"|"bin", "seq_len": T, "val_fraction": 0.05, "val_path": ..}
//   "topology": "zero:2", "workers": 2, "seed": 1, "steps": 100, "dtype": "bf16", "device": "cpu",
//   "eval_every": 0, "eval_batches": 8, "threads": 0
//   "parameter_server": {"servers": 1, "threads": 1, "partition_bytes": 1048576, "deadline_ms": 30000,
//                        "heartbeat_ms": 500, "credit_bytes": 67108864, "bind": "tcp://127.0.0.1:*"}
//   "reduce": "ordered"|"native"
#ifndef STARRING_SHARED_IO_CONFIG_H
#define STARRING_SHARED_IO_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/dtype.h"
#include "shared/model/optimizer.h"

enum topology_kind { TOPOLOGY_LOCAL, TOPOLOGY_PS, TOPOLOGY_ZERO };
enum consistency { CONSISTENCY_SYNC, CONSISTENCY_ASYNC, CONSISTENCY_SSP, CONSISTENCY_BACKUP };
enum launch_kind { LAUNCH_DEFAULT, LAUNCH_THREADS, LAUNCH_PROCESSES, LAUNCH_MPI };
enum device_kind { DEVICE_AUTO, DEVICE_CPU, DEVICE_CUDA, DEVICE_REF };

struct ps_config {
    int servers, threads;       // S; shard threads per server
    int64_t partition_bytes;    // of 16-bit (or fp32) payload
    int64_t deadline_ms, heartbeat_ms;
    int64_t credit_bytes;       // in flight per worker
    char *bind;                 // where servers and scheduler listen
};

struct config {
    char *topology;             // as written: "ps:ssp:2"
    enum topology_kind kind;
    enum consistency consistency;
    int bound;                  // ssp: s; backup: b
    int stage;                  // zero
    int workers;                // N
    enum launch_kind launch;
    enum device_kind device;
    int threads;                // CPU threads per rank; 0: cores / ranks on this machine, at least 1

    char *model;                // preset, file or directory
    char *data;                 // file, directory, or "demo"
    char *val_data;             // or NULL: the tail of data
    char *tokenizer;            // "byte" or "bin"
    double val_fraction;
    int64_t seq;                // T
    int64_t steps;
    uint64_t seed;
    enum dtype dtype;
    char *out;                  // run directory, or NULL
    int64_t eval_every, eval_batches;
    bool trace, json, quiet;

    int64_t train_batch, micro_batch, accumulation;  // DeepSpeed's triangle, resolved: train = micro * acc * N
    struct optimizer_config optimizer;
    char *optimizer_type;       // "AdamW"
    struct schedule_config schedule;
    struct scaler_config scaler;
    float clip;
    int64_t steps_per_print;
    bool reduce_native;
    int64_t deadline_ms;        // collectives; = ps.deadline_ms
    struct ps_config ps;
};

// One "--set a.b=value" or a flag turned into a path; value is JSON, or a bare string.
struct config_override {
    const char *path, *value;
    const char *flag;           // how the user wrote it, for messages: "--workers"
};

// Reads path (NULL: all defaults), applies overrides in order, resolves "auto" and the batch triangle,
// checks. Warnings go to stderr (unknown keys with the nearest known name; keys DeepSpeed knows and
// this program does not support yet). Returns NULL after naming file, key and what to do.
struct config *config_load(const char *path, const struct config_override *o, size_t count);
// The resolved configuration as JSON text (malloc'd); config_load reads it back to an equal config.
char *config_to_json(const struct config *c);
void config_destroy(struct config **c);

// Parses "zero:2", "ps:ssp:3", ...; 0, or -1 after naming the mistake.
int config_parse_topology(struct config *c, const char *text);
const char *config_dtype_name(enum dtype t);

#endif
