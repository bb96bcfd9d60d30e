// The table of configuration keys: place, type, bounds, default of each.
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/config/config_internal.h"
#include "shared/config/relaxed_json.h"
#include "shared/core/error.h"
#include "shared/core/text.h"

#define EXACT_MAX 9007199254740992.0  // 2^53: JSON numbers are doubles
#define FLOAT_MAX 3.4028234663852886e38

static const char *const launch_names[] = {"auto", "threads", "processes", "mpi", NULL};
static const char *const medium_names[] = {"auto", "shm", "tcp", NULL};
static const char *const device_names[] = {"auto", "cpu", "cuda", "ref", NULL};
static const char *const dtype_names[] = {"fp32", "bf16", "fp16", NULL};
static const char *const unknown_names[] = {"refuse", "ignore", NULL};
static const char *const own_or_dtype_names[] = {"auto", "fp32", "bf16", "fp16", NULL};
static const char *const schedule_names[] = {
    "none", "WarmupLR", "WarmupDecayLR", "WarmupCosineLR", "OneCycle", "LRRangeTest", NULL};
static const char *const warmup_names[] = {"log", "linear", NULL};
static const char *const collective_names[] = {"auto", "local", "mpi", "nccl", NULL};
static const char *const memory_check_names[] = {"auto", "off", NULL};
static const char *const batches_names[] = {"none", "all", NULL};
static const char *const auto_names[] = {"auto", NULL};
static const char *const device_bytes_names[] = {"all", NULL};
static const char *const kernel_names[] = {"auto", "fma", "bf16-pairs", NULL};
static const char *const attention_names[] = {"auto", "cudnn", "own", NULL};
static const char *const slice_names[] = {"auto", "whole", NULL};
static const char *const gelu_names[] = {"auto", "fused", "apart", NULL};
static const char *const bias_grad_names[] = {"auto", "epilogue", "kernel", NULL};
static const char *const prefetch_names[] = {"none", "auto", NULL};
static const char *const group_names[] = {"none", "host", NULL};
static const char *const offload_names[] = {"none", "cpu", "nvme", NULL};
static const char *const code_names[] = {"none", "onebit", "int8", "topk", NULL};
static const char *const recompute_names[] = {"auto", "none", "cheap", "block", NULL};
static const char *const reduce_names[] = {"ordered", "native", NULL};

static_assert(DT_F32 == 0 && DT_BF16 == 1 && DT_F16 == 2, "dtype_names are indexed by enum dtype");
static_assert(RECOMPUTE_NONE == 0 && RECOMPUTE_CHEAP == 1 && RECOMPUTE_BLOCK == 2,
              "recompute_names, behind auto");
static_assert(CODE_NONE == 0 && CODE_ONEBIT == 1 && CODE_INT8 == 2 && CODE_TOPK == 3, "code_names");
static_assert(EVAL_ALL == -1, "batches_names are their negatives");
static_assert(PREFETCH_AUTO == -1, "prefetch_names are their negatives");
static_assert(GROUP_NONE == 0 && GROUP_HOST == -1, "group_names are their negatives");
static_assert(CUDA_SLICE_AUTO == 0 && CUDA_SLICE_WHOLE == -1, "slice_names are their negatives");
static_assert(offsetof(struct optimizer_config, beta2) ==
                  offsetof(struct optimizer_config, beta1) + sizeof(float),
              "FIELD_PAIR stores both");

#define FIELD(name, kind, member, ...) \
    { .path = name, .type = kind, .offset = offsetof(struct draft, member), __VA_ARGS__ }
#define TEXT(path, member, ...)       FIELD(path, FIELD_TEXT, member, __VA_ARGS__)
#define LIST(path, member)            FIELD(path, FIELD_LIST, member)
#define BOOL(path, member, ...)       FIELD(path, FIELD_BOOL, member, __VA_ARGS__)
#define ENUM(path, member, list, ...) FIELD(path, FIELD_ENUM, member, .names = list, __VA_ARGS__)
#define SIZE(path, member, list, ...) \
    FIELD(path, FIELD_SIZE, member, .low = 1, .high = EXACT_MAX, .names = list, __VA_ARGS__)
#define NUMBER(path, type, member, least, most, ...) \
    FIELD(path, type, member, .low = least, .high = most, __VA_ARGS__)
#define DEFAULT(text) .default_value = text
#define AUTO(text)    .auto_value = text, .auto_why = "Hugging Face's defaults"
#define LATER         .auto_value = ""
#define OF(types)     .schedules = types

// The schedules that take a parameter, as the constructors of DeepSpeed's lr_schedules.py do.
#define W (1u << SCHEDULE_WARMUP)
#define D (1u << SCHEDULE_WARMUP_DECAY)
#define C (1u << SCHEDULE_WARMUP_COSINE)
#define O (1u << SCHEDULE_ONE_CYCLE)
#define L (1u << SCHEDULE_RANGE_TEST)
#define SCHEDULE_INTEGER(name, member, least, ...) \
    NUMBER("scheduler.params." name, FIELD_I64, c.schedule.member, least, EXACT_MAX, __VA_ARGS__)
#define SCHEDULE_REAL(name, member, most, ...) \
    NUMBER("scheduler.params." name, FIELD_F64, c.schedule.member, 0, most, __VA_ARGS__)

// In the order in which config_to_json writes them.
static const struct field fields[] = {
    TEXT("model.name", c.model, DEFAULT("demo")),
    TEXT("data.path", c.data, DEFAULT("demo")),
    TEXT("data.val_path", c.val_data),
    TEXT("data.tokenizer", c.tokenizer, DEFAULT("auto")),
    NUMBER("data.val_fraction", FIELD_F64, c.val_fraction, 0, 0.9, DEFAULT("0.05")),
    NUMBER("data.seq_len", FIELD_I64, c.seq, 1, 1 << 24, DEFAULT("256")),
    TEXT("topology", c.topology),
    NUMBER("workers", FIELD_INT, c.workers, 1, 65536),
    ENUM("launch", c.launch, launch_names),
    ENUM("medium", c.medium, medium_names),
    ENUM("device", c.device, device_names),
    NUMBER("threads", FIELD_INT, c.threads, 0, 4096),
    ENUM("cpu.kernel", c.cpu_kernel, kernel_names),
    ENUM("cuda.attention", c.cuda.attention, attention_names),
    SIZE("cuda.attention_slice", c.cuda.attention_slice_bytes, slice_names),
    ENUM("cuda.gelu", c.cuda.gelu, gelu_names),
    ENUM("cuda.bias_grad", c.cuda.bias_grad, bias_grad_names),
    TEXT("cuda.products", c.products, DEFAULT("auto")),
    ENUM("dtype", c.dtype, dtype_names),
    NUMBER("steps", FIELD_I64, c.steps, 1, EXACT_MAX, DEFAULT("100")),
    NUMBER("seed", FIELD_I64, c.seed, 0, EXACT_MAX, DEFAULT("1")),
    TEXT("out", c.out),
    NUMBER("eval_every", FIELD_I64, c.eval_every, 0, EXACT_MAX),
    NUMBER("eval_every_seconds", FIELD_F64, c.eval_every_seconds, 0, FLOAT_MAX),
    FIELD("eval_batches", FIELD_SIZE, c.eval_batches, .high = EXACT_MAX, .names = batches_names,
          DEFAULT("all")),
    NUMBER("target_loss", FIELD_F64, c.target_loss, 0, FLOAT_MAX),
    BOOL("keep_snapshots", c.keep_snapshots),
    BOOL("trace", c.trace),
    LIST("trouble.straggle", c.straggle),
    LIST("trouble.delay", c.delay),
    TEXT("trouble.fault", c.fault),
    BOOL("json", c.json),
    BOOL("quiet", c.quiet),
    BOOL("full", c.full),
    ENUM("unknown_keys", unknown_keys, unknown_names),
    ENUM("memory.check", c.memory_check, memory_check_names),
    SIZE("memory.logits_bytes", c.logits_bytes, auto_names),
    SIZE("memory.device_bytes", c.device_bytes, device_bytes_names),
    NUMBER("train_batch_size", FIELD_I64, c.train_batch, 1, 1 << 30, LATER),
    NUMBER("train_micro_batch_size_per_gpu", FIELD_I64, c.micro_batch, 1, 1 << 30, LATER),
    NUMBER("gradient_accumulation_steps", FIELD_I64, c.accumulation, 1, 1 << 30, LATER),
    // The defaults of optimizer.params are in the optimizer's row.
    TEXT("optimizer.type", c.optimizer_type, DEFAULT("AdamW")),
    NUMBER("optimizer.params.lr", FIELD_F32, c.optimizer.lr, 0, FLOAT_MAX, AUTO("5e-05")),
    NUMBER("optimizer.params.betas", FIELD_PAIR, c.optimizer.beta1, 0, 0.9999999, AUTO("[0.9,0.999]")),
    NUMBER("optimizer.params.eps", FIELD_F32, c.optimizer.eps, 1e-38, 1, AUTO("1e-08")),
    NUMBER("optimizer.params.weight_decay", FIELD_F32, c.optimizer.weight_decay, 0, FLOAT_MAX, AUTO("0")),
    NUMBER("optimizer.params.momentum", FIELD_F32, c.optimizer.momentum, 0, 0.9999999),
    NUMBER("optimizer.params.dampening", FIELD_F32, c.optimizer.dampening, 0, 1),
    BOOL("optimizer.params.nesterov", c.optimizer.nesterov),
    FIELD("optimizer.params.adam_w_mode", FIELD_NOT, c.optimizer.l2_mode),
    BOOL("optimizer.params.torch_adam", torch_adam),
    FIELD("optimizer.params.bias_correction", FIELD_NOT, c.optimizer.no_bias_correction),
    NUMBER("optimizer.params.freeze_step", FIELD_I64, c.optimizer.freeze_step, 1, EXACT_MAX),
    ENUM("scheduler.type", c.schedule.type, schedule_names, OF(W | D | C | O | L)),
    NUMBER("scheduler.params.warmup_min_lr", FIELD_F64, c.schedule.min_lr, 0, FLOAT_MAX, AUTO("0"),
           OF(W | D)),
    NUMBER("scheduler.params.warmup_max_lr", FIELD_F64, c.schedule.max_lr, 0, FLOAT_MAX, LATER, OF(W | D)),
    NUMBER("scheduler.params.warmup_num_steps", FIELD_I64, c.schedule.warmup_steps, 1, EXACT_MAX,
           DEFAULT("1000"), LATER, OF(W | D | C)),
    NUMBER("scheduler.params.total_num_steps", FIELD_I64, c.schedule.total_steps, 1, EXACT_MAX, LATER,
           OF(D | C)),
    ENUM("scheduler.params.warmup_type", c.schedule.warmup, warmup_names, OF(W | D | C)),
    NUMBER("scheduler.params.warmup_min_ratio", FIELD_F64, c.schedule.warmup_min_ratio, 0, 1, OF(C)),
    NUMBER("scheduler.params.cos_min_ratio", FIELD_F64, c.schedule.cos_min_ratio, 0, 1, DEFAULT("1e-4"),
           OF(C)),
    NUMBER("scheduler.params.last_batch_iteration", FIELD_I64, last_iteration, -1, -1, DEFAULT("-1"),
           OF(W | D | C | O | L)),
    SCHEDULE_REAL("cycle_min_lr", cycle_min_lr, FLOAT_MAX, OF(O)),
    SCHEDULE_REAL("cycle_max_lr", cycle_max_lr, FLOAT_MAX, OF(O)),
    SCHEDULE_REAL("decay_lr_rate", decay_lr_rate, FLOAT_MAX, OF(O)),
    SCHEDULE_INTEGER("cycle_first_step_size", cycle_first, 1, DEFAULT("2000"), OF(O)),
    SCHEDULE_INTEGER("cycle_second_step_size", cycle_second, 0, OF(O)),
    SCHEDULE_INTEGER("cycle_first_stair_count", first_stairs, 0, OF(O)),
    SCHEDULE_INTEGER("cycle_second_stair_count", second_stairs, 0, OF(O)),
    SCHEDULE_INTEGER("decay_step_size", decay_step, 0, OF(O)),
    BOOL("scheduler.params.cycle_momentum", c.schedule.cycle_momentum, DEFAULT("true"), OF(O)),
    SCHEDULE_REAL("cycle_min_mom", min_mom, 0.9999999, DEFAULT("0.8"), OF(O)),
    SCHEDULE_REAL("cycle_max_mom", max_mom, 0.9999999, DEFAULT("0.9"), OF(O)),
    SCHEDULE_REAL("decay_mom_rate", decay_mom_rate, FLOAT_MAX, OF(O)),
    SCHEDULE_REAL("lr_range_test_min_lr", range_min_lr, FLOAT_MAX, DEFAULT("1e-3"), OF(L)),
    SCHEDULE_INTEGER("lr_range_test_step_size", range_step, 1, DEFAULT("2000"), OF(L)),
    SCHEDULE_REAL("lr_range_test_step_rate", range_rate, FLOAT_MAX, DEFAULT("1"), OF(L)),
    BOOL("scheduler.params.lr_range_test_staircase", c.schedule.range_staircase, OF(L)),
    BOOL("fp16.enabled", fp16, LATER),
    NUMBER("fp16.loss_scale", FIELD_F64, c.scaler.static_scale, 0, FLOAT_MAX),
    NUMBER("fp16.initial_scale_power", FIELD_INT, c.scaler.initial_power, 0, 120, DEFAULT("16")),
    NUMBER("fp16.loss_scale_window", FIELD_INT, c.scaler.window, 1, 1 << 30, DEFAULT("1000")),
    NUMBER("fp16.hysteresis", FIELD_INT, c.scaler.hysteresis, 1, 1 << 30, DEFAULT("2")),
    BOOL("fp16.consecutive_hysteresis", c.scaler.consecutive_hysteresis),
    NUMBER("fp16.min_loss_scale", FIELD_F64, c.scaler.min_scale, 1e-30, FLOAT_MAX, DEFAULT("1")),
    BOOL("bf16.enabled", bf16, LATER),
    // The default is DeepSpeed 0.19.6's.
    NUMBER("gradient_clipping", FIELD_F32, c.clip, 0, FLOAT_MAX, DEFAULT("1"), AUTO("1")),
    NUMBER("steps_per_print", FIELD_I64, c.steps_per_print, 1, EXACT_MAX, DEFAULT("10")),
    BOOL("tensorboard.enabled", c.tensorboard.enabled),
    TEXT("tensorboard.output_path", c.tensorboard.output_path, .empty = true),
    TEXT("tensorboard.job_name", c.tensorboard.job_name, DEFAULT("DeepSpeedJobName")),
    BOOL("csv_monitor.enabled", c.csv_monitor.enabled),
    TEXT("csv_monitor.output_path", c.csv_monitor.output_path, .empty = true),
    TEXT("csv_monitor.job_name", c.csv_monitor.job_name, DEFAULT("DeepSpeedJobName")),
    NUMBER("zero_optimization.stage", FIELD_INT, stage, 0, 3),
    FIELD("zero_optimization.overlap_comm", FIELD_NOT, c.no_overlap),
    FIELD("zero_optimization.stage3_prefetch_bucket_size", FIELD_SIZE, c.prefetch_elements, .high = EXACT_MAX,
          .names = prefetch_names, .alias = "zero_optimization.prefetch_bucket_size", .stage_3 = true,
          DEFAULT("auto")),
    SIZE("zero_optimization.reduce_bucket_size", c.reduce_elements, auto_names),
    SIZE("zero_optimization.allgather_bucket_size", c.gather_elements, auto_names),
    SIZE("zero_optimization.stage3_max_live_parameters", c.live_elements, auto_names, .stage_3 = true,
         .alias = "zero_optimization.max_live_parameters"),
    NUMBER("zero_optimization.zero_hpz_partition_size", FIELD_I64, c.hpz, 1, 65536, .stage_3 = true,
           DEFAULT("1")),
    ENUM("zero_optimization.offload_optimizer.device", c.offload_optimizer.device, offload_names),
    BOOL("zero_optimization.offload_optimizer.pin_memory", c.offload_optimizer.pin_memory),
    TEXT("zero_optimization.offload_optimizer.nvme_path", c.offload_optimizer.nvme_path),
    NUMBER("zero_optimization.offload_optimizer.ratio", FIELD_F64, c.offload_optimizer.ratio, 0, 1,
           DEFAULT("1")),
    ENUM("zero_optimization.offload_param.device", c.offload_param.device, offload_names),
    BOOL("zero_optimization.offload_param.pin_memory", c.offload_param.pin_memory),
    TEXT("zero_optimization.offload_param.nvme_path", c.offload_param.nvme_path),
    BOOL("zero_optimization.cpu_offload", cpu_offload),
    BOOL("zero_optimization.cpu_offload_param", cpu_offload_param),
    NUMBER("aio.block_size", FIELD_I64, c.aio.block_bytes, 4096, 1 << 30, DEFAULT("1048576")),
    NUMBER("aio.queue_depth", FIELD_I64, c.aio.depth, 1, 1024, DEFAULT("16")),
    ENUM("data_types.grad_accum_dtype", c.grad_accum, own_or_dtype_names),
    NUMBER("activation_checkpointing.number_checkpoints", FIELD_I64, c.recompute.blocks, 0, EXACT_MAX),
    BOOL("activation_checkpointing.cpu_checkpointing", c.recompute.inputs_on_host),
    ENUM("activation_checkpointing.recompute", recompute, recompute_names),
    ENUM("communication_data_type", wire_dtype, own_or_dtype_names),
    FIELD("reduce", FIELD_SWITCH, c.reduce_native, .names = reduce_names),
    SIZE("reduce_group", c.reduce_group, group_names),
    ENUM("ring.collective", c.collective, collective_names),
    BOOL("ring.no_sync", c.no_sync),
    NUMBER("parameter_server.servers", FIELD_INT, c.ps.servers, 1, 4096, DEFAULT("1")),
    NUMBER("parameter_server.threads", FIELD_INT, c.ps.threads, 1, 1024, DEFAULT("1")),
    NUMBER("parameter_server.partition_bytes", FIELD_I64, c.ps.partition_bytes, 1024, 1 << 30,
           DEFAULT("1048576")),
    NUMBER("parameter_server.deadline_ms", FIELD_I64, c.ps.deadline_ms, 1, 1 << 30, DEFAULT("30000")),
    NUMBER("parameter_server.heartbeat_ms", FIELD_I64, c.ps.heartbeat_ms, 1, 1 << 30, DEFAULT("500")),
    NUMBER("parameter_server.credit_bytes", FIELD_I64, c.ps.credit_bytes, 1024, EXACT_MAX,
           DEFAULT("67108864")),
    TEXT("parameter_server.bind", c.ps.bind, DEFAULT("tcp://127.0.0.1:*")),
    BOOL("parameter_server.record_arrivals", c.ps.record_arrivals),
    TEXT("parameter_server.replay_arrivals", c.ps.replay_arrivals),
    BOOL("parameter_server.log_updates", c.ps.log_updates),
    BOOL("parameter_server.replicate", c.ps.replicate),
    ENUM("parameter_server.compression", c.ps.code.kind, code_names),
    NUMBER("parameter_server.compression_share", FIELD_F64, c.ps.code.share, 1e-9, 1, DEFAULT("0.01")),
    NUMBER("recovery.checkpoint_every", FIELD_I64, c.recovery.checkpoint_every, 0, EXACT_MAX),
    BOOL("recovery.checkpoint_background", c.recovery.checkpoint_background),
    NUMBER("recovery.checkpoint_keep", FIELD_I64, c.recovery.checkpoint_keep, 0, 1 << 30, DEFAULT("2")),
    NUMBER("recovery.checkpoint_keep_every", FIELD_I64, c.recovery.checkpoint_keep_every, 0, 1 << 30),
    TEXT("recovery.resume", c.recovery.resume),
    BOOL("recovery.resume_weights_only", c.recovery.resume_weights_only),
    NUMBER("recovery.restart", FIELD_INT, c.recovery.restart, 0, 1 << 30),
    TEXT("recovery.elastic", c.recovery.elastic),
    TEXT("security.keys", c.security.keys),
    BOOL("security.insecure", c.security.insecure),
};
static_assert(sizeof fields / sizeof *fields <= FIELDS_MAX, "struct reading has a state for each");

const char *config_collective_name(enum ring_collective c) { return collective_names[c]; }
const char *config_medium_name(enum medium m) { return medium_names[m]; }

size_t field_count(void) { return sizeof fields / sizeof *fields; }
const struct field *field_at(size_t i) { return &fields[i]; }

const struct field *field_find(const char *path) {
    for (size_t i = 0; i < field_count(); i++)
        if (!strcmp(fields[i].path, path) || (fields[i].alias && !strcmp(fields[i].alias, path)))
            return &fields[i];
    return NULL;
}

static int refuse(const struct field *f, const char *origin, const char *expected, const cJSON *v) {
    const char *kind = cJSON_IsString(v)   ? "string "
                       : cJSON_IsNumber(v) ? "number "
                       : cJSON_IsObject(v) ? "object "
                       : cJSON_IsArray(v)  ? "array "
                                           : "";
    char *text = cJSON_PrintUnformatted(v);
    fail("%s: %s: expected %s%s, got %s%.60s", origin, f->path, expected, f->auto_value ? " or \"auto\"" : "",
         kind, text ? text : "?");
    free(text);
    return -1;
}

// v as a number within the field's bounds. 0, or -1 after fail().
static int number(const struct field *f, const cJSON *v, const char *origin, double *out) {
    bool whole = f->type == FIELD_INT || f->type == FIELD_I64 || f->type == FIELD_SIZE;
    const char *what = whole ? "an integer" : f->type == FIELD_PAIR ? "an array of two numbers" : "a number";
    if (!cJSON_IsNumber(v)) return refuse(f, origin, what, v);
    double x = v->valuedouble;
    if ((whole && x != floor(x)) || !isfinite(x)) return refuse(f, origin, what, v);
    if (x < f->low || x > f->high) {
        char range[96];
        if (f->low == f->high)
            snprintf(range, sizeof range, "%.10g", f->low);
        else if (x < f->low && f->high >= (whole ? EXACT_MAX : FLOAT_MAX))
            snprintf(range, sizeof range, "%s of at least %.10g", what, f->low);
        else
            snprintf(range, sizeof range, "%s from %.10g to %.16g", what, f->low, f->high);
        return refuse(f, origin, range, v);
    }
    *out = x;
    return 0;
}

// Which of the field's names v is. 0, or -1 after fail().
static int name_index(const struct field *f, const cJSON *v, const char *origin, int *out) {
    char list[128];
    snprintf(list, sizeof list, "%s",
             f->type != FIELD_SIZE      ? "one of"
             : f->names == group_names  ? "a number of workers, or one of"
             : strstr(f->path, "zero_") ? "a number of elements, or one of"
             : f->low > 0               ? "bytes (4096, 64K, 16M or 1GiB), or one of"
                                        : "a number, or one of");
    for (int i = 0; f->names[i]; i++) {
        if (cJSON_IsString(v) && !strcmp(v->valuestring, f->names[i])) return *out = i, 0;
        size_t n = strlen(list);
        snprintf(list + n, sizeof list - n, "%s \"%s\"", i ? "," : "", f->names[i]);
    }
    return refuse(f, origin, list, v);
}

static int store_pair(const struct field *f, float *place, const cJSON *v, const char *origin) {
    if (!cJSON_IsArray(v) || cJSON_GetArraySize(v) != 2)
        return refuse(f, origin, "an array of two numbers", v);
    for (int i = 0; i < 2; i++) {
        double x;
        if (number(f, cJSON_GetArrayItem(v, i), origin, &x)) return -1;
        place[i] = (float)x;
    }
    return 0;
}

// Texts, in an array or joined by commas already, become one text.
static int store_list(const struct field *f, char **place, const cJSON *v, const char *origin) {
    const cJSON *first = cJSON_IsArray(v) ? v->child : v;
    size_t bytes = 1;
    for (const cJSON *item = first; item; item = cJSON_IsArray(v) ? item->next : NULL) {
        if (!cJSON_IsString(item) || !item->valuestring[0]) return refuse(f, origin, "an array of texts", v);
        bytes += strlen(item->valuestring) + 1;
    }
    free(*place);
    *place = NULL;
    if (!first) return 0;
    char *at = *place = xcalloc(bytes, 1);
    for (const cJSON *item = first; item; item = cJSON_IsArray(v) ? item->next : NULL)
        at += sprintf(at, "%s%s", item == first ? "" : ",", item->valuestring);
    return 0;
}

static cJSON *load_list(const char *list) {
    cJSON *array = list ? cJSON_CreateArray() : NULL;
    for (const char *at = list; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
        char *item = xasprintf("%.*s", (int)strcspn(at, ","), at);
        cJSON_AddItemToArray(array, cJSON_CreateString(item));
        free(item);
    }
    return array;
}

int field_store(const struct field *f, struct draft *d, const cJSON *v, const char *origin) {
    void *place = (char *)d + f->offset;
    double x = 0;
    int index = 0;
    switch (f->type) {
        case FIELD_BOOL:
        case FIELD_NOT:
            if (!cJSON_IsBool(v)) return refuse(f, origin, "true or false", v);
            *(bool *)place = cJSON_IsTrue(v) != (f->type == FIELD_NOT);
            return 0;
        case FIELD_TEXT:
            if (!cJSON_IsString(v) || (!v->valuestring[0] && !f->empty))
                return refuse(f, origin, "a text", v);
            free(*(char **)place);
            *(char **)place = v->valuestring[0] ? xstrdup(v->valuestring) : NULL;
            return 0;
        case FIELD_LIST:
            return store_list(f, place, v, origin);
        case FIELD_ENUM:
        case FIELD_SWITCH:
            if (name_index(f, v, origin, &index)) return -1;
            if (f->type == FIELD_SWITCH)
                *(bool *)place = index == 1;
            else
                *(int *)place = index;
            return 0;
        case FIELD_SIZE:
            if (cJSON_IsNumber(v)) break;
            if (f->low > 0 && cJSON_IsString(v) && !text_bytes(v->valuestring, place)) return 0;
            if (name_index(f, v, origin, &index)) return -1;
            *(int64_t *)place = -index;
            return 0;
        case FIELD_PAIR:
            return store_pair(f, place, v, origin);
        case FIELD_INT:
        case FIELD_I64:
        case FIELD_F32:
        case FIELD_F64:
            break;
    }
    if (number(f, v, origin, &x)) return -1;
    if (f->type == FIELD_INT) *(int *)place = (int)x;
    if (f->type == FIELD_I64 || f->type == FIELD_SIZE) *(int64_t *)place = (int64_t)x;
    if (f->type == FIELD_F32) *(float *)place = (float)x;
    if (f->type == FIELD_F64) *(double *)place = x;
    return 0;
}

static cJSON *load_f32(float v) {
    char text[32];
    shortest_f32(text, v);
    return cJSON_CreateRaw(text);
}

// cJSON's own printing may lose the last bit.
static cJSON *load_f64(double v) {
    char text[32];
    shortest_f64(text, v);
    return cJSON_CreateRaw(text);
}

cJSON *field_parse(const struct field *f, const char *value) {
    bool list = f && f->type == FIELD_LIST && value[0] != '[';
    if (list || (f && f->type == FIELD_TEXT && value[0] != '"')) return cJSON_CreateString(value);
    cJSON *v = relaxed_json_try(value);
    return v ? v : cJSON_CreateString(value);
}

static void store_default(const struct field *f, struct draft *d, const char *value) {
    cJSON *v = field_parse(f, value);
    int rc = field_store(f, d, v, "defaults");
    assert(rc == 0 && "a default is a value of its field");
    (void)rc;
    cJSON_Delete(v);
}

void draft_init(struct draft *d) {
    *d = (struct draft){0};
    for (size_t i = 0; i < field_count(); i++)
        if (fields[i].default_value) store_default(&fields[i], d, fields[i].default_value);
}

// The default that the optimizer's row has for the field's key below "optimizer.params". "": the field is no
// parameter of an optimizer; NULL: it is a parameter of other optimizers.
static const char *optimizer_says(const struct field *f, const struct optimizer *row) {
    static const char params[] = "optimizer.params.";
    bool param = !strncmp(f->path, params, sizeof params - 1);
    return param ? optimizer_default(row, f->path + sizeof params - 1) : "";
}

void draft_set_optimizer(struct draft *d, const struct optimizer *row) {
    d->c.optimizer = (struct optimizer_config){.row = row};
    for (size_t i = 0; i < field_count(); i++) {
        const char *value = optimizer_says(&fields[i], row);
        if (value && *value) store_default(&fields[i], d, value);
    }
}

bool field_serves(const struct field *f, const struct config *c) {
    return (!f->schedules || f->schedules >> c->schedule.type & 1) && optimizer_says(f, c->optimizer.row);
}

void draft_fini(struct draft *d) {
    for (size_t i = 0; i < field_count(); i++)
        if (fields[i].type == FIELD_TEXT || fields[i].type == FIELD_LIST)
            free(*(char **)((char *)d + fields[i].offset));
}

void field_clear(const struct field *f, struct draft *d) {
    static const size_t sizes[] = {
        [FIELD_BOOL] = sizeof(bool),   [FIELD_NOT] = sizeof(bool),       [FIELD_INT] = sizeof(int),
        [FIELD_I64] = sizeof(int64_t), [FIELD_F32] = sizeof(float),      [FIELD_F64] = sizeof(double),
        [FIELD_ENUM] = sizeof(int),    [FIELD_PAIR] = 2 * sizeof(float), [FIELD_SIZE] = sizeof(int64_t),
        [FIELD_SWITCH] = sizeof(bool)};
    memset((char *)d + f->offset, 0, sizes[f->type]);
}

cJSON *field_load(const struct field *f, const struct draft *d) {
    const void *place = (const char *)d + f->offset;
    char text[40];
    switch (f->type) {
        case FIELD_BOOL:
            return cJSON_CreateBool(*(const bool *)place);
        case FIELD_NOT:
            return cJSON_CreateBool(!*(const bool *)place);
        case FIELD_INT:
            return cJSON_CreateNumber(*(const int *)place);
        case FIELD_SIZE:
        case FIELD_I64:
            if (f->type == FIELD_SIZE && *(const int64_t *)place <= 0)
                return cJSON_CreateString(f->names[-*(const int64_t *)place]);
            snprintf(text, sizeof text, "%lld", (long long)*(const int64_t *)place);
            return cJSON_CreateRaw(text);
        case FIELD_F32:
            return load_f32(*(const float *)place);
        case FIELD_F64:
            return load_f64(*(const double *)place);
        case FIELD_TEXT:
            return *(char *const *)place ? cJSON_CreateString(*(char *const *)place) : NULL;
        case FIELD_LIST:
            return load_list(*(char *const *)place);
        case FIELD_ENUM:
            return cJSON_CreateString(f->names[*(const int *)place]);
        case FIELD_SWITCH:
            return cJSON_CreateString(f->names[*(const bool *)place]);
        case FIELD_PAIR: {
            cJSON *pair = cJSON_CreateArray();
            cJSON_AddItemToArray(pair, load_f32(((const float *)place)[0]));
            cJSON_AddItemToArray(pair, load_f32(((const float *)place)[1]));
            return pair;
        }
    }
    return NULL;
}
