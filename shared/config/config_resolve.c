// Rules about more than one key. Each function resolves or checks one subject of the draft.
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shared/config/config_internal.h"
#include "shared/core/error.h"
#include "shared/core/json.h"
#include "shared/core/numbers.h"
#include "shared/core/text.h"
#include "shared/core/topology_row.h"
#include "shared/core/trouble.h"

static const char *const text_of_bool[] = {"false", "true"};

// Returns a number of a section's "params", or fallback if it is absent.
static double param(const cJSON *section, const char *name, double fallback) {
    const cJSON *v = json_item(json_item(section, "params"), name);
    return cJSON_IsNumber(v) ? v->valuedouble : fallback;
}

// Evaluates a term: "NAME=USUAL" is the number NAME of the scheduler's params, or USUAL if it is absent; any other term is
// a number, or lr. *behind receives the text after the term.
static double term(const char *at, const cJSON *scheduler, double lr, char **behind) {
    char name[32];
    size_t n = strspn(at, "abcdefghijklmnopqrstuvwxyzT_0");
    if (at[n] != '=' || !n) {
        bool rate = !strncmp(at, "lr", 2);
        double number = strtod(at, behind);
        if (rate) *behind = (char *)at + 2;
        return rate ? lr : number;
    }
    snprintf(name, sizeof name, "%.*s", (int)n, at);
    return param(scheduler, name, strtod(at + n + 1, behind));
}

// Returns the template with each "{TERM}" replaced by its value (malloc'd). The term may be followed by *TERM,
// /TERM, or -TERM, which means *(1 - TERM).
static char *fill(const char *template, const cJSON *scheduler, double lr) {
    char *text = xstrdup("");
    for (const char *at = template, *open; *at; at = open ? strchr(open, '}') + 1 : at + strlen(at)) {
        open = strchr(at, '{');
        char value[32] = "", *behind = NULL;
        if (open) {
            double x = term(open + 1, scheduler, lr, &behind);
            double factor = *behind == '}' ? 1 : term(behind + 1, scheduler, lr, &(char *){NULL});
            snprintf(value, sizeof value, "%.6g",
                     *behind == '/'   ? x / factor
                     : *behind == '-' ? x * (1 - factor)
                                      : x * factor);
        }
        text_add(&text, "%.*s%s", (int)(open ? open - at : (ptrdiff_t)strlen(at)), at, value);
    }
    return text;
}

// torch's schedulers. DeepSpeed accepts each by its name, unless it has a scheduler of that name itself (0.19.6:
// runtime/engine.py). One that leaves the rate constant is removed. The others never equal one of ours at every
// update, because ours begin with two steps of warm-up. The error names the nearest one with the file's numbers, if
// there is one.
static int check_torch_schedule(const struct reading *r, cJSON *root) {
#define DECAY "\"warmup_num_steps\": 2, \"warmup_max_lr\": {lr}, \"total_num_steps\": "
    static const struct {
        const char *torch, *ours,
            *with;         // torch's name; our nearest one and its parameters, NULL: none is similar
        const char *flat;  // terms that are all 1 if the rate is constant; NULL: it never is constant
    } rows[] = {
        {"CosineAnnealingLR", "WarmupCosineLR",
         "\"warmup_num_steps\": 2, \"total_num_steps\": {T_max=100}, \"cos_min_ratio\": {eta_min=0/lr}",
         NULL},
        {"CosineAnnealingWarmRestarts", "WarmupCosineLR",
         "\"warmup_num_steps\": 2, \"total_num_steps\": {T_0=100}, \"cos_min_ratio\": {eta_min=0/lr}", NULL},
        {"LinearLR", "WarmupLR",
         "\"warmup_type\": \"linear\", \"warmup_num_steps\": {total_iters=5}, \"warmup_min_lr\": "
         "{start_factor=0.333333*lr}, \"warmup_max_lr\": {end_factor=1*lr}",
         "{start_factor=0.333333} {end_factor=1}"},
        {"ConstantLR", "WarmupLR",
         "\"warmup_num_steps\": {total_iters=5}, \"warmup_min_lr\": {factor=0.333333*lr}, \"warmup_max_lr\": "
         "{lr}",
         "{factor=0.333333}"},
        {"PolynomialLR", "WarmupDecayLR", DECAY "{total_iters=5}", NULL},
        {"ExponentialLR", NULL, NULL, "{gamma=0}"},
        {"StepLR", NULL, NULL, "{gamma=0.1}"},
        {"MultiStepLR", NULL, NULL, "{gamma=0.1}"},
        {"ReduceLROnPlateau", NULL, NULL, NULL},
        {"LambdaLR", NULL, NULL, NULL},
        {"MultiplicativeLR", NULL, NULL, NULL},
        {"SequentialLR", NULL, NULL, NULL},
        {"ChainedScheduler", NULL, NULL, NULL},
        {"CyclicLR", "OneCycle",
         "\"cycle_min_lr\": {base_lr=0.001}, \"cycle_max_lr\": {max_lr=0.01}, \"cycle_first_step_size\": "
         "{step_size_up=2000}",
         NULL},
        {"OneCycleLR", "OneCycle",
         "\"cycle_min_lr\": {max_lr=0.01/div_factor=25}, \"cycle_max_lr\": {max_lr=0.01}, \"cycle_first_step_size\": "
         "{total_steps=100*pct_start=0.3}, \"cycle_second_step_size\": {total_steps=100-pct_start=0.3}",
         NULL}};
    const cJSON *section = json_item(root, "scheduler");
    const char *type = cJSON_GetStringValue(json_item(section, "type"));
    double lr = param(json_item(root, "optimizer"), "lr", 1e-3);
    for (size_t i = 0; type && i < sizeof rows / sizeof *rows; i++) {
        if (strcmp(type, rows[i].torch) != 0) continue;
        char *flat = rows[i].flat ? fill(rows[i].flat, section, lr) : NULL, *with = NULL;
        bool constant = flat && (!strcmp(flat, "1") || !strcmp(flat, "1 1"));
        if (constant) {
            config_warn(r, "scheduler.type",
                        ": %s with these parameters keeps the rate constant: no schedule is used", type);
            cJSON_DeleteItemFromObjectCaseSensitive(root, "scheduler");
        } else if (rows[i].ours) {
            with = fill(rows[i].with, section, lr);
            config_refuse(
                r, "scheduler.type",
                ": %s is torch's, which DeepSpeed takes and this program does not have: the nearest here is "
                "\"type\": \"%s\" with %s",
                type, rows[i].ours, with);
        } else {
            config_refuse(
                r, "scheduler.type",
                ": %s is torch's, which DeepSpeed takes and this program does not have, and no schedule here is like it: "
                "remove the section scheduler for a constant rate, or use WarmupLR, WarmupDecayLR, WarmupCosineLR, OneCycle or LRRangeTest",
                type);
        }
        free(flat);
        free(with);
        return constant ? 0 : -1;
    }
    return 0;
}

int config_read_types(const struct reading *r, cJSON *root) {
    static const char *const refused[] = {"ZeroOneAdam", "OneBitLamb", "Lamb",  "FusedLamb", "Muon",
                                          "MuAdam",      "MuAdamW",    "MuSGD", "Adagrad",   "Adadelta",
                                          "Adamax",      "NAdam",      "RAdam", "Adafactor", "CPUAdam"};
    const cJSON *section = json_item(root, "optimizer");
    const char *type = cJSON_GetStringValue(json_item(section, "type"));
    const struct optimizer *row = optimizer_find(type ? type : r->d->c.optimizer_type);
    char names[128];
    for (size_t i = 0; !row && i < sizeof refused / sizeof *refused; i++)
        if (!strcasecmp(type, refused[i]))
            return config_refuse(
                r, "optimizer.type",
                ": %s is not supported yet, and another in its place would change the results: possible are %s",
                type, optimizer_names(names));
    if (!row)
        return config_refuse(r, "optimizer.type", ": unknown optimizer \"%.60s\": possible are %s", type,
                             optimizer_names(names));
    draft_set_optimizer(r->d, row);
    return check_torch_schedule(r, root);
}

// Keys of a dynamic loss scale; DeepSpeed checks them only for a dynamic scale (0.19.6:
// runtime/precision_config.py). This program also checks the last two: a scale beyond fp32 and a hysteresis below 1
// cannot work.
static int check_scaler(const struct reading *r) {
    const struct scaler_config *c = &r->d->c.scaler;
    const struct {
        const char *key;
        double value, least, most;
    } keys[] = {{"fp16.loss_scale_window", c->window, 1, INT_MAX},
                {"fp16.min_loss_scale", c->min_scale, 1e-30, FLOAT_MAX},
                {"fp16.initial_scale_power", c->initial_power, -120, 120},
                {"fp16.hysteresis", c->hysteresis, 1, INT_MAX}};
    for (size_t i = 0; c->enabled && c->static_scale == 0 && i < sizeof keys / sizeof *keys; i++)
        if (keys[i].value < keys[i].least || keys[i].value > keys[i].most)
            return config_refuse(
                r, keys[i].key,
                " %.10g: a loss scale that moves (fp16.loss_scale 0) needs one from %.10g to %.10g",
                keys[i].value, keys[i].least, keys[i].most);
    return 0;
}

static int resolve_dtype(struct reading *r) {
    struct draft *d = r->d;
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
            config_warn(r, "dtype", " %s wins over %s %s", dtype_name(d->c.dtype), keys[i],
                        text_of_bool[*on[i]]);
    if (!given) d->c.dtype = d->bf16 ? DT_BF16 : d->fp16 ? DT_F16 : DT_F32;
    d->c.scaler.enabled = d->c.dtype == DT_F16;
    return check_scaler(r);
}

// fp32 on the wire may be requested where it changes no bit: a 16-bit gradient is the same number in fp32, and this
// program adds in fp32 and rounds once, as DeepSpeed does with fp32 on the wire. Groups, native sums and codes round more
// often, so there it is refused.
static int check_wire(struct reading *r) {
    static const char key[] = "communication_data_type";
    const struct config *c = &r->d->c;
    int asked = r->d->wire_dtype - 1, weights = r->d->param_dtype - 1;
    if (weights >= 0 && weights != (int)c->dtype)
        return config_refuse(
            r, "data_types.param_dtype",
            " %s is not the run's dtype %s, which is the type of its weights: remove the key, or use bf16, fp16 or dtype",
            dtype_name((enum dtype)weights), dtype_name(c->dtype));
    bool groups = c->reduce_group && c->reduce_group != 1 && c->reduce_group != c->workers;
    bool codes = c->ps.code.kind != CODE_NONE || c->optimizer.row->onebit;
    if (asked < 0 || asked == (int)c->dtype) return 0;
    if (asked == DT_F32 && !c->reduce_native && !groups && !codes) {
        config_note(r, &(struct note){.topic = NOTE_WIRE, .path = key, .why = dtype_name(c->dtype)});
        return 0;
    }
    return config_refuse(
        r, key,
        " %s is not the run's dtype %s: gradients travel in the run's dtype and are summed in fp32 in worker order; another type would round them otherwise, so remove the key, or set dtype%s",
        dtype_name((enum dtype)asked), dtype_name(c->dtype),
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
    if (train && !(micro && steps)) {  // one of the three follows from the others, if the division is exact
        int64_t other = micro ? c->micro_batch : c->accumulation;
        if (c->train_batch % (other * n))
            return fail("%s: %s %lld is no multiple of %s %lld * workers %lld = %lld: change one of them",
                        r->file, train_key, (long long)c->train_batch, micro ? micro_key : steps_key,
                        (long long)other, (long long)n, (long long)(other * n));
    }
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
        if (!strcmp(f->path, "scheduler.type") || key_applies(f, c)) continue;
        if (config_state(r, f->path) == KEY_ABSENT) {
            key_clear(f, r->d);  // so that equal schedules are equal structs
            continue;
        }
        const char *origin = config_origin(r, f->path, from);
        if (c->optimizer.row->onebit && !strcmp(f->path, "optimizer.params.bias_correction")) {
            // DeepSpeed's OnebitAdam accepts it, computes a number from it and corrects nothing.
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
    if (o->row->moving && o->momentum > 0) o->row = o->row->moving;
    if (!o->nesterov || (o->momentum > 0 && o->dampening == 0)) return 0;
    return config_refuse(r, "optimizer.params.nesterov",
                         " needs a momentum above 0 and a dampening of 0, as in torch: set them");
}

static void resolve_adam(struct reading *r) {
    struct config *c = &r->d->c;
    const struct optimizer *row = c->optimizer.row;
    // The default of torch.optim.AdamW; FusedAdam's is 0.
    if (r->d->torch_adam && (row->decoupled || !c->optimizer.l2_mode) &&
        config_state(r, "optimizer.params.weight_decay") == KEY_ABSENT) {
        c->optimizer.weight_decay = 0.01f;
        config_warn(
            r, "optimizer.params.torch_adam",
            ": optimizer.params.weight_decay is absent: 0.01, the default of torch.optim.AdamW, which torch_adam asks for (without torch_adam it is 0)");
    }
    if (!row->decoupled || !c->optimizer.l2_mode) return;
    // DeepSpeed's engine: the name AdamW forces decoupled decay.
    config_warn(
        r, "optimizer.params.adam_w_mode",
        " false does not go with type %s, which always decouples the decay: adam_w_mode is true; for the L2 form write \"type\": \"Adam\"",
        row->name);
    c->optimizer.l2_mode = false;
}

// Fills OneCycle's absent parameters as DeepSpeed does, and the optimizer's momentum cycle.
static int resolve_cycle(struct reading *r) {
    struct config *c = &r->d->c;
    struct schedule_config *s = &c->schedule;
    static const char *const needed[] = {"scheduler.params.cycle_min_lr", "scheduler.params.cycle_max_lr"};
    static const char momentum_key[] = "scheduler.params.cycle_momentum";
    for (int i = 0; i < 2; i++)
        if (config_state(r, needed[i]) == KEY_ABSENT)
            return config_refuse(r, "scheduler.type", ": %s is missing: OneCycle has no default for it",
                                 needed[i]);
    if (config_state(r, "scheduler.params.cycle_second_step_size") == KEY_ABSENT)
        s->cycle_second = s->cycle_first;
    if (config_state(r, "scheduler.params.cycle_second_stair_count") == KEY_ABSENT)
        s->second_stairs = s->first_stairs;
    if (!s->cycle_momentum) return 0;
    if (!optimizer_default(c->optimizer.row, "betas")) {
        s->cycle_momentum = false;
        config_warn(r, momentum_key, " is off: %s has no betas that it could move, in DeepSpeed as here",
                    c->optimizer.row->name);
        return 0;
    }
    float last = schedule_beta1(s, c->steps);
    if (last >= 1)
        return config_refuse(
            r, momentum_key,
            ": scheduler.params.decay_mom_rate %g lets beta1 grow to %g by step %lld, and from 1 on nothing converges: lower it, or set cycle_momentum to false",
            s->decay_mom_rate, (double)last, (long long)c->steps);
    c->optimizer.cycle = *s;
    return 0;
}

// warmup_max_lr: "auto" is the optimizer's lr; absent, it is the optimizer's lr in WarmupLR and 0.001 in
// WarmupDecayLR. total_num_steps: "auto" is the run's number of steps.
static int resolve_max_and_total(struct reading *r) {
    struct config *c = &r->d->c;
    static const char max_key[] = "scheduler.params.warmup_max_lr",
                      total_key[] = "scheduler.params.total_num_steps";
    char text[32];
    bool uses_max = key_applies(config_key_find(max_key), c);
    bool uses_total = key_applies(config_key_find(total_key), c);
    enum key_state max_state = config_state(r, max_key);
    if (uses_max && max_state != KEY_GIVEN) {
        shortest_f32(text, c->optimizer.lr);
        c->schedule.max_lr = strtod(text, NULL);
        if (max_state == KEY_AUTO)
            config_say_auto(r, max_key, text, "lr");
        else if (c->schedule.type == SCHEDULE_WARMUP_DECAY && c->schedule.max_lr != 0.001) {
            c->schedule.max_lr = 0.001;
            config_warn(
                r, "scheduler.type",
                ": %s is absent: 0.001, DeepSpeed's default for WarmupDecayLR; the optimizer's lr %s is not used",
                max_key, text);
        }
    }
    if (uses_total && config_state(r, total_key) == KEY_ABSENT)
        return config_refuse(
            r, "scheduler.type",
            ": %s is missing: give the number of updates the schedule spans, or \"auto\" for steps",
            total_key);
    if (uses_total && config_state(r, total_key) == KEY_AUTO) {
        c->schedule.total_steps = c->steps;
        snprintf(text, sizeof text, "%lld", (long long)c->steps);
        config_say_auto(r, total_key, text, "steps");
    }
    if (uses_total && c->schedule.total_steps < c->schedule.warmup_steps)
        config_warn(r, total_key, " %lld is below warmup_num_steps %lld: the run ends within the warm-up",
                    (long long)c->schedule.total_steps, (long long)c->schedule.warmup_steps);
    return 0;
}

static int resolve_schedule(struct reading *r) {
    static const char warmup_key[] = "scheduler.params.warmup_num_steps";
    struct schedule_config *s = &r->d->c.schedule;
    if (config_state(r, warmup_key) == KEY_AUTO) {  // Hugging Face's default is 0
        s->warmup_steps = 2;
        config_say_auto(r, warmup_key, "2", "DeepSpeed's least");
    } else if (config_state(r, warmup_key) == KEY_GIVEN && s->warmup_steps == 0) {
        s->warmup_steps = 2;
        config_warn(
            r, warmup_key,
            " 0 is 2, the least number of steps that DeepSpeed's schedules make of it (0.19.6 refuses 0 itself)");
    }
    if (s->type == SCHEDULE_ONE_CYCLE && resolve_cycle(r)) return -1;
    return resolve_max_and_total(r);
}

// ---------------------------------------------------------------- checkpoints, resuming, restarts: what excludes what
static int check_elastic(struct reading *r) {
    const struct config *c = &r->d->c;
    struct recovery_config *v = &r->d->c.recovery;
    if (!v->elastic) return 0;
    if (config_elastic(v->elastic, &v->elastic_min, &v->elastic_max) != 0)
        return config_refuse(r, "recovery.elastic",
                             ": expected MIN:MAX with 1 <= MIN <= MAX, as in 2:8, got \"%s\"", v->elastic);
    if (!c->row->messages)
        return config_refuse(r, "recovery.elastic", ": topology %s needs all of its ranks: use ps:sync",
                             c->topology);
    if (v->elastic_max != c->workers)
        return config_refuse(r, "recovery.elastic",
                             " %s: MAX is the number of workers that the run is laid out for: make it "
                             "%d, or workers %d",
                             v->elastic, c->workers, v->elastic_max);
    if (v->elastic_max > CONFIG_ELASTIC_MAX)
        return config_refuse(r, "recovery.elastic", " %s: at most %d workers can come and go", v->elastic,
                             CONFIG_ELASTIC_MAX);
    return 0;
}

// Checks where a run resumes from and where it writes: "latest" is the latest checkpoint of --out.
static int check_resume(struct reading *r) {
    const struct config *c = &r->d->c;
    const struct recovery_config *v = &c->recovery;
    if (v->resume_weights_only && !v->resume)
        return config_refuse(r, "recovery.resume_weights_only",
                             ": needs the checkpoint whose weights to use: give --resume too");
    if (!v->resume || strcmp(v->resume, "latest") != 0) return 0;
    if (!c->out)
        return config_refuse(r, "recovery.resume",
                             ": \"latest\" is the latest checkpoint in --out: give --out DIR too");
    if (v->resume_weights_only)
        return config_refuse(
            r, "recovery.resume",
            ": \"latest\" continues the run in --out, but --resume-weights-only begins a new run: name the checkpoint or the run directory");
    return 0;
}

// Refuses keys on how checkpoints are kept, if none are written.
static int check_kept(struct reading *r) {
    static const char *const keys[] = {"recovery.checkpoint_background", "recovery.checkpoint_keep_every",
                                       "recovery.checkpoint_keep"};
    for (size_t i = 0; r->d->c.recovery.checkpoint_every <= 0 && i < sizeof keys / sizeof *keys; i++)
        if (!key_is_standard(config_key_find(keys[i]), r->d))
            return config_refuse(r, keys[i],
                                 ": the run writes no checkpoints: give --checkpoint-every K, too");
    return 0;
}

static int check_fault(struct reading *r) {
    const struct config *c = &r->d->c;
    struct message_fault fault;
    char why[FAULT_WHY_MAX];
    if (!c->fault) return 0;
    if (!c->row->messages)
        return config_refuse(r, "trouble.fault",
                             ": only a star sends such messages: use ps:sync or ps:async");
    if (message_fault_parse(c->fault, c->seed, &fault, why) != 0)
        return config_refuse(r, "trouble.fault", ": %s", why);
    return 0;
}

// ---------------------------------------------------------------- state on the host or on disk
// offload_optimizer and offload_param of zero_optimization (DeepSpeed 0.19.6: runtime/zero/offload_config.py), and
// their deprecated forms.
static const char optimizer_key[] = "zero_optimization.offload_optimizer",
                  param_key[] = "zero_optimization.offload_param",
                  optimizer_device[] = "zero_optimization.offload_optimizer.device",
                  param_device[] = "zero_optimization.offload_param.device",
                  old_optimizer[] = "zero_optimization.cpu_offload",
                  old_param[] = "zero_optimization.cpu_offload_param";

static int check_folder(const struct reading *r, const char *device, const char *section,
                        const struct offload_config *o) {
    if (o->device != OFFLOAD_NVME || o->nvme_path) return 0;
    return config_refuse(
        r, device,
        ": \"nvme\" needs a directory to write to, and nvme_path is missing: give it with --set %s.nvme_path=DIR, or turn it off with --set %s.device=none",
        section, section);
}

static int check_machine(const char *section, const struct offload_config *o) {
    struct stat st;
    const char *folder = o->nvme_path;
    if (o->device != OFFLOAD_NVME) return 0;
    const char *why = stat(folder, &st)      ? "does not exist"
                      : !S_ISDIR(st.st_mode) ? "is no directory"
                      : access(folder, W_OK) ? "cannot be written"
                                             : NULL;
    if (!why) return 0;
    return fail(
        "%s: device \"nvme\" needs a directory to write to, and nvme_path %s %s: give it with --set %s.nvme_path=DIR, "
        "or turn it off with --set %s.device=none",
        section, folder, why, section, section);
}

int config_check_folders(const struct config *c) {
    int optimizer = check_machine(optimizer_key, &c->offload_optimizer);  // both errors are printed
    return check_machine(param_key, &c->offload_param) || optimizer ? -1 : 0;
}

// Applies a deprecated form, which means "device": "cpu", if no device is given. If both are given they must agree,
// unless one of them is from the command line and the other is not: then that one wins. *key receives the key to
// name in messages. Returns 0, or -1 after fail().
static int translate(const struct reading *r, const char **key, const char *old, bool asked,
                     struct offload_config *o) {
    char from[128], old_from[128];
    enum offload_device meant = asked ? OFFLOAD_CPU : OFFLOAD_NONE;
    if (config_state(r, old) == KEY_ABSENT) return 0;
    if (config_state(r, *key) == KEY_ABSENT) {
        if (asked) *key = old;
        o->device = meant;
        return 0;
    }
    bool from_file = config_origin(r, *key, from) == r->file;
    bool old_from_file = config_origin(r, old, old_from) == r->file;
    if (from_file == old_from_file && o->device != meant)
        return config_refuse(
            r, old, " is %s, the deprecated form of %s \"%s\", but that key is \"%s\": leave one of them out",
            asked ? "true" : "false", *key, offload_names[meant], offload_names[o->device]);
    if (!from_file || old_from_file) return 0;
    *key = old;
    o->device = meant;
    return 0;
}

static int resolve_offload(struct reading *r) {
    struct config *c = &r->d->c;
    struct offload_config *o = &c->offload_optimizer, *p = &c->offload_param;
    const char *optimizer = optimizer_device, *param = param_device;
    if (translate(r, &optimizer, old_optimizer, r->d->cpu_offload, o) ||
        translate(r, &param, old_param, r->d->cpu_offload_param, p))
        return -1;
    long long piece = (long long)c->aio.block_bytes;
    bool disk = o->device == OFFLOAD_NVME || p->device == OFFLOAD_NVME;
    if (disk && (piece < 4096 || piece % 4096))
        return config_refuse(
            r, "aio.block_size",
            " is %lld: a disk's blocks are 4096 bytes, and it must be a multiple of them, as %lld", piece,
            (piece / 4096 + 1) * 4096);
    if (disk && (c->aio.depth < 1 || c->aio.depth > 1024))
        return config_refuse(r, "aio.queue_depth", " is %lld: a disk takes 1 to 1024 pieces at once",
                             (long long)c->aio.depth);
    if (check_folder(r, optimizer, optimizer_key, o) || check_folder(r, param, param_key, p)) return -1;
    bool ring = c->row->takes_stage;
    if (!ring && (o->device || p->device))
        config_warn(
            r, o->device ? optimizer : param,
            ": --topology %s cannot offload its state: offload_optimizer and offload_param of zero_optimization have an effect only with zero:1 to zero:3",
            c->topology);
    if (ring && c->variant == 0 && o->device)
        return config_refuse(
            r, optimizer,
            ": in stage 0 every rank holds the whole optimizer, and none of it is a rank's own to offload: use stage 1, 2 or 3, or turn it off with --set %s=none",
            optimizer_device);
    if (ring && c->variant < 3 && p->device)
        config_note(r, &(struct note){.topic = NOTE_STAGE_3, .path = param});
    if (!ring || c->variant < 3) {
        p->device = OFFLOAD_NONE;
        c->prefetch_elements = PREFETCH_AUTO;
        c->live_elements = 0;
        c->hpz = 1;
    }
    // In fp32 the weights are the masters, and are stored with them.
    if (p->device == OFFLOAD_NVME && o->device == OFFLOAD_CPU && c->dtype == DT_F32) {
        p->device = OFFLOAD_CPU;
        config_warn(
            r, param,
            ": fp32 weights are the masters, and lie in host memory with these: nvme for offload_optimizer too brings both to disk");
    }
    if (!ring || o->ratio == 0) o->device = OFFLOAD_NONE;
    if (p->device && (!o->device || o->ratio < 1))
        return config_refuse(
            r, param,
            ": the device would keep masters, which are larger than the weights that leave it: offload the whole optimizer too, with --set %s=cpu and ratio 1, or turn it off with --set %s=none",
            optimizer_device, param_device);
    return 0;
}

static int settle_offload(struct reading *r) {
    const struct config *c = &r->d->c;
    if (resolve_offload(r)) return -1;
    bool disk = c->offload_optimizer.device == OFFLOAD_NVME || c->offload_param.device == OFFLOAD_NVME;
    const struct {
        const char *path;
        bool used;
    } keys[] = {
        {"aio.block_size", disk},
        {"aio.queue_depth", disk},
        {"zero_optimization.offload_optimizer.ratio", c->offload_optimizer.device != OFFLOAD_NONE},
        {"gossip.graph", c->row->takes_graph},
        {"local_steps.outer.type", c->local_steps.steps > 0},
        {"local_steps.outer.lr", c->local_steps.steps > 0},
        {"local_steps.outer.momentum", c->local_steps.steps > 0},
        {"local_steps.outer.age_decay", c->local_steps.steps > 0 && outer_rows[c->local_steps.outer].by_age},
        {"local_steps.outer.age_cutoff", c->local_steps.steps > 0 && outer_rows[c->local_steps.outer].by_age},
        {"lora.alpha", c->lora.r > 0},
        {"lora.targets", c->lora.r > 0},
        {"tensorboard.output_path", c->tensorboard.enabled},
        {"csv_monitor.output_path", c->csv_monitor.enabled},
        {"parameter_server.compression_share", c->ps.code.kind == CODE_TOPK}};
    // Notes a key whose master switch is off, except a default value: every run's config.json has the defaults.
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (!keys[i].used && config_state(r, keys[i].path) == KEY_GIVEN &&
            !key_is_standard(config_key_find(keys[i].path), r->d))
            config_note(r, &(struct note){.topic = NOTE_NOTHING, .path = keys[i].path});
    return 0;
}

// ---------------------------------------------------------------- the rest
// Refuses keys of servers if there are none.
static int check_servers_keys(struct reading *r) {
    for (size_t i = 0; i < config_key_count() && !r->d->c.row->reports_staleness; i++) {
        const struct config_key *f = config_key_at(i);
        if (f->servers && config_state(r, f->path) == KEY_GIVEN && !key_is_standard(f, r->d))
            return config_refuse(
                r, f->path, " is a key of a star's servers, and --topology is %s: leave it out, or use %s",
                r->d->c.topology, f->servers);
    }
    return 0;
}

static int check_rest(struct reading *r) {
    struct config *c = &r->d->c;
    const char *tokenizer = c->tokenizer;
    if (c->clip < 0) {  // DeepSpeed clips only above 0
        config_warn(r, "gradient_clipping", " %g is 0, no clipping: write that", (double)c->clip);
        c->clip = 0;
    }
    if (strcmp(tokenizer, "auto") && strcmp(tokenizer, "byte") && strcmp(tokenizer, "bin"))
        return config_refuse(
            r, "data.tokenizer",
            ": \"%s\": possible are \"auto\" (by the files), \"byte\" and \"bin\"; tokens of other tokenizers are made beforehand, by experiments/tokenize.py",
            tokenizer);
    char why[TROUBLE_WHY_MAX];
    if (trouble_check(TROUBLE_STRAGGLE, c->straggle, c->workers, why))
        return config_refuse(r, "trouble.straggle", ": %s", why);
    if (trouble_check(TROUBLE_DELAY, c->delay, c->workers, why))
        return config_refuse(r, "trouble.delay", ": %s", why);
    if (c->security.insecure && !c->row->messages)
        return config_refuse(
            r, "security.insecure",
            " is a key of a star's processes, and --topology is %s: leave it out, or use ps:sync",
            c->topology);
    if (check_servers_keys(r) || check_fault(r) || check_elastic(r) || check_kept(r) || check_resume(r))
        return -1;
    if (c->eval_every > 0 && c->eval_every_seconds > 0)
        return config_refuse(r, "eval_every_seconds",
                             " is in seconds, and eval_every in steps: give one of them");
    if (c->ps.heartbeat_ms >= c->ps.deadline_ms)
        return config_refuse(r, "parameter_server.heartbeat_ms", " %lld must be below deadline_ms %lld",
                             (long long)c->ps.heartbeat_ms, (long long)c->ps.deadline_ms);
    if (c->ps.credit_bytes && c->ps.credit_bytes < c->ps.partition_bytes)
        return config_refuse(r, "parameter_server.credit_bytes",
                             " %lld must hold at least one partition of %lld bytes",
                             (long long)c->ps.credit_bytes, (long long)c->ps.partition_bytes);
    c->deadline_ms = c->ps.deadline_ms;
    return 0;
}

// Resolves rounds of local steps, and refuses keys that cannot be combined with them.
static int resolve_local_steps(struct reading *r) {
    static const char rounds_key[] = "local_steps.steps", lr_key[] = "local_steps.outer.lr",
                      momentum_key[] = "local_steps.outer.momentum";
    struct config *c = &r->d->c;
    struct local_steps_config *l = &c->local_steps;
    const struct {
        const char *key;
        int64_t value;
    } whole[] = {{"steps", c->steps},
                 {"eval_every", c->eval_every},
                 {"recovery.checkpoint_every", c->recovery.checkpoint_every}};
    const char *lacks =
        !c->row->takes_local_steps
            ? "local steps work with ps:sync, ps:async and zero:0 to zero:2: choose one of them"
        : c->dtype == DT_F16       ? "each rank would skip steps by itself: use --dtype bf16 or fp32"
        : c->optimizer.row->onebit ? "OneBitAdam exchanges momenta in each step: use Adam"
        : c->documents == DOCUMENTS_WHOLE
            ? "a rank's gradient is a mean over its own samples, of as many tokens as any other's: use --documents packed"
        : c->no_overlap ? "ranks exchange only between rounds: leave zero_optimization.overlap_comm out"
        : c->eval_every_seconds > 0 ? "snapshots are made only at the end of a round: use eval_every"
                                    : NULL;
    if (!l->steps) return 0;
    if (lacks) return config_refuse(r, rounds_key, " with topology %s: %s", c->topology, lacks);
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++)
        if (whole[i].value % l->steps)
            return config_refuse(
                r, whole[i].key,
                " %lld: a round is %lld steps (local_steps.steps), and nothing ends or is kept "
                "within one: give a multiple of it",
                (long long)whole[i].value, (long long)l->steps);
    const struct outer_row *outer = &outer_rows[l->outer];
    if (outer->by_age && !(c->row->is_independent && c->row->is_independent(c)))
        return config_refuse(r, "local_steps.outer.type",
                             " %s weights a worker's change by its age, and with topology %s all changes "
                             "have the same age: use ps:async, or nesterov",
                             outer->name, c->topology);
    if (config_state(r, lr_key) != KEY_GIVEN) {
        if (outer->lr == 0)
            return config_refuse(r, lr_key, ": %s has no learning rate that suits every run: give one",
                                 outer->name);
        l->lr = outer->elastic ? outer->lr / (float)c->workers : outer->lr;
    }
    if (config_state(r, momentum_key) != KEY_GIVEN) l->momentum = outer->momentum;
    const struct optimizer *row = optimizer_find(outer->optimizer);
    bool moves = outer->momentum > 0, below_1 = moves && !row->moving;  // it is Adam's beta1
    if (moves != (l->momentum > 0) || (below_1 && l->momentum >= 1))
        return config_refuse(r, momentum_key, " %g: local_steps.outer.type %s has %s", (double)l->momentum,
                             outer->name,
                             !moves    ? "no momentum"
                             : below_1 ? "a momentum above 0 and below 1"
                                       : "a momentum above 0");
    l->optimizer = (struct optimizer_config){.row = moves && row->moving ? row->moving : row,
                                             .lr = l->lr,
                                             .momentum = l->momentum,
                                             .nesterov = outer->nesterov,
                                             .beta1 = l->momentum,
                                             .beta2 = 0.999f,
                                             .eps = 1e-8f};
    return 0;
}

// 16-bit sums of gradients have the run's own type, or there are none.
static int check_accumulation(struct reading *r) {
    static const char key[] = "data_types.grad_accum_dtype";
    const struct config *c = &r->d->c;
    if (c->grad_accum <= 1 + DT_F32 || c->grad_accum == 1 + (int)c->dtype) return 0;
    return config_refuse(
        r, key, " is %s, and gradients are %s: leave it out, which sums in fp32, or set it to \"%s\"",
        dtype_name((enum dtype)(c->grad_accum - 1)), dtype_name(c->dtype), dtype_name(c->dtype));
}

// With "auto", a key about kept inputs turns recomputation on. In DeepSpeed the model's code does that.
static int resolve_recompute(struct reading *r) {
    static const char number_key[] = "activation_checkpointing.number_checkpoints",
                      host_key[] = "activation_checkpointing.cpu_checkpointing",
                      kind_key[] = "activation_checkpointing.recompute";
    struct recompute_options *o = &r->d->c.recompute;
    const char *asks = o->blocks > 0 ? number_key : o->inputs_on_host ? host_key : NULL;
    o->kind = r->d->recompute ? (enum recompute_kind)(r->d->recompute - 1)
              : asks          ? RECOMPUTE_BLOCK
                              : RECOMPUTE_NONE;
    if (!asks || o->kind == RECOMPUTE_BLOCK) return 0;
    return config_refuse(
        r, asks,
        " applies to blocks that keep only their input, but %s is \"%s\", which keeps %s: set it to \"block\", or leave %s out",
        kind_key, recompute_name(o->kind), o->kind == RECOMPUTE_CHEAP ? "more" : "everything", asks);
}

// Reports keys of the command line that have no effect. Not those of a file, which many topologies and types may share: a
// flag is meant for this run.
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
            bool said = !strcmp(path, "parameter_server.compression_share") || !strcmp(path, "fp16.enabled");
            bool rings_too = !strcmp(path, "parameter_server.deadline_ms");
            if (said || rings_too || config_state(r, path) != KEY_GIVEN) continue;
            if (config_origin(r, path, from) == r->file) continue;
            config_note(r, &(struct note){.topic = NOTE_NOTHING, .path = path});
        }
    }
}

#define LORA_R 8

int config_resolve(struct reading *r) {
    // A section without r asks for peft's default.
    bool lora = config_state(r, "lora.alpha") == KEY_GIVEN || config_state(r, "lora.targets") == KEY_GIVEN;
    if (lora && config_state(r, "lora.r") == KEY_ABSENT) r->d->c.lora.r = LORA_R;
    if (resolve_dtype(r) || config_resolve_topology(r) || settle_offload(r) || resolve_batch(r)) return -1;
    free(r->d->c.optimizer_type);
    r->d->c.optimizer_type = xstrdup(r->d->c.optimizer.row->name);
    resolve_adam(r);
    if (check_parameters(r) || resolve_sgd(r) || resolve_schedule(r) || resolve_recompute(r) ||
        check_accumulation(r) || check_wire(r) || check_rest(r) || resolve_local_steps(r))
        return -1;
    say_idle(r);
    return 0;
}
