// What depends on more than one key. Each function fills in or checks one part of the draft.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "shared/config/config_internal.h"
#include "shared/core/error.h"
#include "shared/core/sizes.h"
#include "shared/core/text.h"
#include "shared/core/topology_row.h"
#include "shared/core/trouble.h"

static const char *const text_of_bool[] = {"false", "true"};

// For types that DeepSpeed or torch has: the message says more than that the name is not possible.
static int refuse_type(const struct reading *r, const char *path, const char *type, const char *possible) {
    char from[128];
    return fail(
        "%s: %s: %s is not supported yet, and another in its place would change the results: possible are %s",
        config_origin(r, path, from), path, type, possible);
}

static const char *type_in(const cJSON *root, const char *section) {
    const cJSON *s = cJSON_GetObjectItemCaseSensitive(root, section);
    return cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(s, "type"));
}

int config_read_types(const struct reading *r, const cJSON *root) {
    static const char *const refused[] = {
        "ZeroOneAdam", "OneBitLamb", "Lamb",     "FusedLamb", "Muon",  "MuAdam", "MuAdamW",   "MuSGD",
        "Adagrad",     "RMSprop",    "Adadelta", "Adamax",    "NAdam", "RAdam",  "Adafactor", "CPUAdam"};
    const char *type = type_in(root, "optimizer");
    const struct optimizer *row = optimizer_find(type ? type : r->d->c.optimizer_type);
    char from[128], names[128];
    for (size_t i = 0; !row && i < sizeof refused / sizeof *refused; i++)
        if (!strcasecmp(type, refused[i]))
            return refuse_type(r, "optimizer.type", type, optimizer_names(names));
    if (!row)
        return fail("%s: optimizer.type: unknown optimizer \"%.60s\": possible are %s",
                    config_origin(r, "optimizer.type", from), type, optimizer_names(names));
    draft_set_optimizer(r->d, row);
    return 0;
}

static int resolve_dtype(struct reading *r) {
    struct draft *d = r->d;
    char from[128];
    static const char *const keys[] = {"bf16.enabled", "fp16.enabled"};
    const enum dtype types[] = {DT_BF16, DT_F16};
    bool *on[] = {&d->bf16, &d->fp16}, given = config_state(r, "dtype") == KEY_GIVEN;
    for (int i = 0; i < 2; i++) {
        if (config_state(r, keys[i]) != KEY_AUTO) continue;
        *on[i] = given && d->c.dtype == types[i];
        config_say_auto(r, keys[i], text_of_bool[*on[i]], "what dtype asks for");
    }
    if (d->bf16 && d->fp16)
        return fail("%s: bf16.enabled and fp16.enabled are both true: enable one of them", r->file);
    for (int i = 0; i < 2 && given; i++)
        if (config_state(r, keys[i]) == KEY_GIVEN && *on[i] != (d->c.dtype == types[i]))
            warn("%s: dtype %s wins over %s %s", config_origin(r, "dtype", from), dtype_name(d->c.dtype),
                 keys[i], text_of_bool[*on[i]]);
    if (!given) d->c.dtype = d->bf16 ? DT_BF16 : d->fp16 ? DT_F16 : DT_F32;
    d->c.scaler.enabled = d->c.dtype == DT_F16;
    return 0;
}

// A 16-bit gradient is the same number in fp32, and the sum of all workers' is taken in fp32 and rounded once: what DeepSpeed does
// with fp32 on the wire. Not so where something else is rounded on the way.
static int check_wire(struct reading *r) {
    static const char key[] = "communication_data_type";
    const struct config *c = &r->d->c;
    int asked = r->d->wire_dtype - 1;
    char from[128];
    bool groups = c->reduce_group && c->reduce_group != 1 && c->reduce_group != c->workers;
    bool codes = c->ps.code.kind != CODE_NONE || c->optimizer.row->onebit;
    if (asked < 0 || asked == (int)c->dtype) return 0;
    if (asked == DT_F32 && !c->reduce_native && !groups && !codes) {
        config_note(r, &(struct note){.topic = NOTE_WIRE, .path = key, .why = dtype_name(c->dtype)});
        return 0;
    }
    return fail(
        "%s: %s %s is not the run's dtype %s: gradients travel in the run's dtype and are summed in fp32 in worker order; "
        "another type would round them otherwise, so remove the key, or set dtype%s",
        config_origin(r, key, from), key, dtype_name((enum dtype)asked), dtype_name(c->dtype),
        asked == DT_F32 ? ", or leave \"reduce\", reduce_group and parameter_server.compression out" : "");
}

static const char train_key[] = "train_batch_size", micro_key[] = "train_micro_batch_size_per_gpu",
                  steps_key[] = "gradient_accumulation_steps";

// DeepSpeed's triangle train = micro * accumulation * workers (runtime/config.py, _set_batch_related_parameters).
// If neither train nor micro is given, micro is 4.
static int resolve_batch(struct reading *r) {
    struct config *c = &r->d->c;
    bool train = config_state(r, train_key) == KEY_GIVEN, micro = config_state(r, micro_key) == KEY_GIVEN;
    bool steps = config_state(r, steps_key) == KEY_GIVEN;
    int64_t n = c->workers;
    if (train && micro && !steps) c->accumulation = c->train_batch / c->micro_batch / n;
    if (!steps && !(train && micro)) c->accumulation = 1;
    if (train && !micro) c->micro_batch = c->train_batch / n / c->accumulation;
    if (!train && !micro) c->micro_batch = 4;
    int64_t product = c->micro_batch * c->accumulation;
    if (product > (int64_t)1 << 30)
        return fail("%s: %s * %s = %lld is too large", r->file, micro_key, steps_key, (long long)product);
    product *= n;
    if (!train) c->train_batch = product;
    if (c->train_batch != product)
        return fail(
            "%s: %s %lld is not %s %lld * %s %lld * workers %lld = %lld: "
            "change one of them, or leave one out to have it derived",
            r->file, train_key, (long long)c->train_batch, micro_key, (long long)c->micro_batch, steps_key,
            (long long)c->accumulation, (long long)n, (long long)product);
    if (size_times(c->train_batch, c->seq) >= SIZE_TOP || size_times(c->train_batch, c->steps) >= SIZE_TOP)
        return fail(
            "%s: %s %lld sequences of %lld tokens in %lld steps are more than can be counted (2^62): give smaller numbers",
            r->file, train_key, (long long)c->train_batch, (long long)c->seq, (long long)c->steps);
    const struct {
        const char *key;
        int64_t value;
    } all[] = {{train_key, c->train_batch}, {micro_key, c->micro_batch}, {steps_key, c->accumulation}};
    for (int i = 0; i < 3; i++) {
        char text[32];
        snprintf(text, sizeof text, "%lld", (long long)all[i].value);
        if (config_state(r, all[i].key) == KEY_AUTO) config_say_auto(r, all[i].key, text, NULL);
    }
    return 0;
}

// Refuses parameters of another optimizer or schedule than the run's.
static int check_parameters(struct reading *r) {
    const struct config *c = &r->d->c;
    char from[128];
    for (size_t i = 0; i < config_key_count(); i++) {
        const struct config_key *f = config_key_at(i);
        if (!strcmp(f->path, "scheduler.type") || key_serves(f, c)) continue;
        if (config_state(r, f->path) == KEY_ABSENT) {
            key_clear(f, r->d);  // so that equal schedules are equal structs
            continue;
        }
        const char *origin = config_origin(r, f->path, from);
        if (c->optimizer.row->onebit && !strcmp(f->path, "optimizer.params.bias_correction")) {
            // DeepSpeed's OnebitAdam takes it, computes a number of it and corrects nothing.
            config_note(r, &(struct note){.topic = NOTE_NOTHING, .path = f->path});
            key_clear(f, r->d);
            continue;
        }
        if (!f->schedules)
            return fail("%s: %s is no parameter of %s: remove it", origin, f->path, c->optimizer.row->name);
        if (c->schedule.type == SCHEDULE_NONE)
            return fail("%s: %s: scheduler.type is missing", origin, f->path);
        return fail("%s: %s is no parameter of the schedule in scheduler.type: remove it", origin, f->path);
    }
    return 0;
}

static int resolve_sgd(struct reading *r) {
    struct optimizer_config *o = &r->d->c.optimizer;
    char from[128];
    if (o->row->moving && o->momentum > 0) o->row = o->row->moving;
    if (!o->nesterov || (o->momentum > 0 && o->dampening == 0)) return 0;
    return fail(
        "%s: optimizer.params.nesterov needs a momentum above 0 and a dampening of 0, as in torch: set them",
        config_origin(r, "optimizer.params.nesterov", from));
}

static void resolve_adam(struct reading *r) {
    struct config *c = &r->d->c;
    const struct optimizer *row = c->optimizer.row;
    char from[128];
    // torch.optim.AdamW's default, where FusedAdam's is 0.
    if (r->d->torch_adam && (row->decoupled || !c->optimizer.l2_mode) &&
        config_state(r, "optimizer.params.weight_decay") == KEY_ABSENT) {
        c->optimizer.weight_decay = 0.01f;
        warn(
            "%s: optimizer.params.weight_decay is absent: 0.01, the default of torch.optim.AdamW, which "
            "torch_adam asks for (without torch_adam it is 0)",
            config_origin(r, "optimizer.params.torch_adam", from));
    }
    if (!row->decoupled || !c->optimizer.l2_mode) return;
    // DeepSpeed's engine: the name AdamW forces decoupled decay.
    warn(
        "%s: optimizer.params.adam_w_mode false does not go with type %s, which always decouples the "
        "decay: adam_w_mode is true; for the L2 form write \"type\": \"Adam\"",
        config_origin(r, "optimizer.params.adam_w_mode", from), row->name);
    c->optimizer.l2_mode = false;
}

// What DeepSpeed's OneCycle makes of absent parameters, and whose momentum it moves.
static int resolve_cycle(struct reading *r) {
    struct config *c = &r->d->c;
    struct schedule_config *s = &c->schedule;
    static const char *const needed[] = {"scheduler.params.cycle_min_lr", "scheduler.params.cycle_max_lr"};
    static const char momentum_key[] = "scheduler.params.cycle_momentum";
    char from[128];
    for (int i = 0; i < 2; i++)
        if (config_state(r, needed[i]) == KEY_ABSENT)
            return fail("%s: %s is missing: OneCycle has no default for it",
                        config_origin(r, "scheduler.type", from), needed[i]);
    if (config_state(r, "scheduler.params.cycle_second_step_size") == KEY_ABSENT)
        s->cycle_second = s->cycle_first;
    if (config_state(r, "scheduler.params.cycle_second_stair_count") == KEY_ABSENT)
        s->second_stairs = s->first_stairs;
    if (!s->cycle_momentum) return 0;
    if (!optimizer_default(c->optimizer.row, "betas")) {
        s->cycle_momentum = false;
        warn("%s: cycle_momentum is off: %s has no betas that it could move, in DeepSpeed as here",
             config_origin(r, momentum_key, from), c->optimizer.row->name);
        return 0;
    }
    float last = schedule_beta1(s, c->steps);
    if (last >= 1)
        return fail(
            "%s: scheduler.params.decay_mom_rate %g lets beta1 grow to %g by step %lld, and from 1 on nothing "
            "converges: lower it, or set cycle_momentum to false",
            config_origin(r, momentum_key, from), s->decay_mom_rate, (double)last, (long long)c->steps);
    c->optimizer.cycle = *s;
    return 0;
}

// warmup_max_lr: "auto" is the optimizer's lr; absent, it is the optimizer's lr in WarmupLR and 0.001 in
// WarmupDecayLR. total_num_steps: "auto" is the run's number of steps.
static int resolve_max_and_total(struct reading *r) {
    struct config *c = &r->d->c;
    static const char max_key[] = "scheduler.params.warmup_max_lr",
                      total_key[] = "scheduler.params.total_num_steps";
    char text[32], from[128];
    bool uses_max = key_serves(config_key_find(max_key), c);
    bool uses_total = key_serves(config_key_find(total_key), c);
    enum key_state max_state = config_state(r, max_key);
    if (uses_max && max_state != KEY_GIVEN) {
        shortest_f32(text, c->optimizer.lr);
        c->schedule.max_lr = strtod(text, NULL);
        if (max_state == KEY_AUTO)
            config_say_auto(r, max_key, text, "lr");
        else if (c->schedule.type == SCHEDULE_WARMUP_DECAY && c->schedule.max_lr != 0.001) {
            c->schedule.max_lr = 0.001;
            warn(
                "%s: %s is absent: 0.001, DeepSpeed's default for "
                "WarmupDecayLR; the optimizer's lr %s is not used",
                config_origin(r, "scheduler.type", from), max_key, text);
        }
    }
    if (uses_total && config_state(r, total_key) == KEY_ABSENT)
        return fail("%s: %s is missing: give the number of updates the schedule spans, or \"auto\" for steps",
                    config_origin(r, "scheduler.type", from), total_key);
    if (uses_total && config_state(r, total_key) == KEY_AUTO) {
        c->schedule.total_steps = c->steps;
        snprintf(text, sizeof text, "%lld", (long long)c->steps);
        config_say_auto(r, total_key, text, "steps");
    }
    if (uses_total && c->schedule.total_steps < c->schedule.warmup_steps)
        warn("%s: %s %lld is below warmup_num_steps %lld: the run ends within the warm-up",
             config_origin(r, total_key, from), total_key, (long long)c->schedule.total_steps,
             (long long)c->schedule.warmup_steps);
    return 0;
}

static int resolve_schedule(struct reading *r) {
    static const char warmup_key[] = "scheduler.params.warmup_num_steps";
    struct schedule_config *s = &r->d->c.schedule;
    if (config_state(r, warmup_key) == KEY_AUTO) {
        // Hugging Face's default of 0 is refused by DeepSpeed, whose schedules make 2 steps of 1.
        s->warmup_steps = 2;
        config_say_auto(r, warmup_key, "2", "DeepSpeed's least");
    }
    if (s->type == SCHEDULE_ONE_CYCLE && resolve_cycle(r)) return -1;
    return resolve_max_and_total(r);
}

static int check_trouble(struct reading *r) {
    const struct config *c = &r->d->c;
    char from[128], why[TROUBLE_WHY_MAX];
    if (trouble_check(TROUBLE_STRAGGLE, c->straggle, c->workers, why))
        return fail("%s: trouble.straggle: %s", config_origin(r, "trouble.straggle", from), why);
    if (trouble_check(TROUBLE_DELAY, c->delay, c->workers, why))
        return fail("%s: trouble.delay: %s", config_origin(r, "trouble.delay", from), why);
    return 0;
}

// What is of servers, where there are none.
static int check_study(struct reading *r) {
    const struct config *c = &r->d->c;
    char from[128];
    const struct {
        const char *path;
        bool given;
        const char *where;
    } keys[] = {{"parameter_server.record_arrivals", c->ps.record_arrivals, "ps:async"},
                {"parameter_server.replay_arrivals", c->ps.replay_arrivals != NULL, "ps:async"},
                {"parameter_server.log_updates", c->ps.log_updates, "ps:async"},
                {"parameter_server.replicate", c->ps.replicate, "ps:sync"},
                {"parameter_server.compression", c->ps.code.kind != CODE_NONE, "ps:sync"}};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (keys[i].given && !c->row->reports_staleness)
            return fail("%s: %s is of the star's servers, and --topology is %s: leave it out, or use %s",
                        config_origin(r, keys[i].path, from), keys[i].path, c->topology, keys[i].where);
    return 0;
}

static int check_security(struct reading *r) {
    const struct security_config *s = &r->d->c.security;
    char from[128];
    const char *path = s->keys ? "security.keys" : s->insecure ? "security.insecure" : NULL;
    if (path && !r->d->c.row->messages)
        return fail("%s: %s is of the star's processes, and --topology is %s: leave it out, or use ps:sync",
                    config_origin(r, path, from), path, r->d->c.topology);
    if (s->keys && s->insecure)
        return fail(
            "%s: security.keys %s says who may join, and security.insecure that anybody may: give one of them",
            config_origin(r, "security.insecure", from), s->keys);
    return 0;
}

static int check_rest(struct reading *r) {
    struct config *c = &r->d->c;
    char from[128];
    const char *tokenizer = c->tokenizer;
    if (strcmp(tokenizer, "auto") && strcmp(tokenizer, "byte") && strcmp(tokenizer, "bin"))
        return fail(
            "%s: data.tokenizer: \"%s\": possible are \"auto\" (by the files), \"byte\" and \"bin\"; "
            "tokens of other tokenizers are made beforehand, by experiments/tokenize.py",
            config_origin(r, "data.tokenizer", from), tokenizer);
    if (check_trouble(r) || check_study(r) || check_security(r) || config_check_recovery(r)) return -1;
    if (c->eval_every > 0 && c->eval_every_seconds > 0)
        return fail("%s: eval_every counts steps, eval_every_seconds seconds: give one of them",
                    config_origin(r, "eval_every_seconds", from));
    if (c->ps.heartbeat_ms >= c->ps.deadline_ms)
        return fail("%s: parameter_server.heartbeat_ms %lld must be below deadline_ms %lld",
                    config_origin(r, "parameter_server.heartbeat_ms", from), (long long)c->ps.heartbeat_ms,
                    (long long)c->ps.deadline_ms);
    if (c->ps.credit_bytes < c->ps.partition_bytes)
        return fail("%s: parameter_server.credit_bytes %lld must hold at least one partition of %lld bytes",
                    config_origin(r, "parameter_server.credit_bytes", from), (long long)c->ps.credit_bytes,
                    (long long)c->ps.partition_bytes);
    c->deadline_ms = c->ps.deadline_ms;
    return 0;
}

// 16-bit gradients are of the run's own type, or there are none.
static int check_accumulation(struct reading *r) {
    static const char key[] = "data_types.grad_accum_dtype";
    const struct config *c = &r->d->c;
    char from[128];
    if (c->grad_accum <= 1 + DT_F32 || c->grad_accum == 1 + (int)c->dtype) return 0;
    return fail("%s: %s is %s, and gradients are %s: leave it out, which sums in fp32, or set it to \"%s\"",
                config_origin(r, key, from), key, dtype_name((enum dtype)(c->grad_accum - 1)),
                dtype_name(c->dtype), dtype_name(c->dtype));
}

// Who asks for kept inputs asks for the rest to be computed again: "auto". In DeepSpeed the model's code does.
static int resolve_recompute(struct reading *r) {
    static const char number_key[] = "activation_checkpointing.number_checkpoints",
                      host_key[] = "activation_checkpointing.cpu_checkpointing",
                      kind_key[] = "activation_checkpointing.recompute";
    struct recompute_options *o = &r->d->c.recompute;
    char from[128];
    const char *asks = o->blocks > 0 ? number_key : o->inputs_on_host ? host_key : NULL;
    o->kind = r->d->recompute ? (enum recompute_kind)(r->d->recompute - 1)
              : asks          ? RECOMPUTE_BLOCK
                              : RECOMPUTE_NONE;
    if (!asks || o->kind == RECOMPUTE_BLOCK) return 0;
    return fail(
        "%s: %s is of blocks that keep their input alone, and %s is \"%s\", which keeps %s: set it to \"block\", or leave %s out",
        config_origin(r, asks, from), asks, kind_key, recompute_name(o->kind),
        o->kind == RECOMPUTE_CHEAP ? "more" : "everything", asks);
}

// A file is shared between topologies and types; a key that stands on the command line is meant for this run.
static void say_idle(struct reading *r) {
    const struct config *c = &r->d->c;
    char from[128];
    const struct {
        const char *section;
        bool used;
    } of[] = {{"parameter_server.", c->row->messages}, {"fp16.", c->dtype == DT_F16}};
    for (size_t i = 0; i < config_key_count(); i++) {
        const char *path = config_key_at(i)->path;
        for (size_t k = 0; k < sizeof of / sizeof *of; k++) {
            if (of[k].used || strncmp(path, of[k].section, strlen(of[k].section)) != 0) continue;
            bool said = !strcmp(path, "parameter_server.compression_share") ||
                        !strcmp(config_origin(r, path, from), "--servers") || !strcmp(path, "fp16.enabled");
            bool rings_too = !strcmp(path, "parameter_server.deadline_ms");
            if (said || rings_too || config_state(r, path) != KEY_GIVEN) continue;
            if (config_origin(r, path, from) == r->file) continue;
            config_note(r, &(struct note){.topic = NOTE_NOTHING, .path = path});
        }
    }
}

int config_resolve(struct reading *r) {
    if (resolve_dtype(r) || config_resolve_topology(r) || config_resolve_offload(r) || resolve_batch(r))
        return -1;
    free(r->d->c.optimizer_type);
    r->d->c.optimizer_type = xstrdup(r->d->c.optimizer.row->name);
    resolve_adam(r);
    if (check_parameters(r) || resolve_sgd(r) || resolve_schedule(r) || resolve_recompute(r) ||
        check_accumulation(r) || check_wire(r) || check_rest(r))
        return -1;
    say_idle(r);
    return 0;
}
