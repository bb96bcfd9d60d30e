#include "ps/star.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ps/job/batches.h"
#include "ps/job/consistency.h"
#include "ps/job/ps.h"
#include "ps/job/push_code.h"
#include "ps/job/security.h"
#include "ps/job/unit_moves.h"
#include "ps/launch_star.h"
#include "ps/net/medium.h"
#include "ps/net/member.h"
#include "ps/record/arrivals.h"
#include "ps/server/policy_list.h"
#include "shared/core/error.h"
#include "shared/core/numbers.h"
#include "shared/fabric/job_key.h"
#include "shared/launch/local_steps.h"

#define FRAME_OVERHEAD 1.125  // libzmq's overhead, as a factor of the bytes that the transport holds

static bool is_server(const char *role) { return !strcmp(role, "server"); }

static int parse(const char *text, int *bound) {
    return strncmp(text, "ps:", 3) ? -1 : consistency_parse(text + 3, bound);
}

static bool variant(int i, struct topology_variant *out) {
    const struct consistency_row *row = consistency_row(i);
    *out = (struct topology_variant){0};
    if (!row) return false;
    snprintf(out->name, sizeof out->name, "ps:%s%s%s", row->name, row->argument ? ":" : "",
             row->argument ? row->argument : "");
    out->means = row->means;
    return true;
}

static int check_name(const struct config *c, const char *origin) {
    struct consistency_rule rule = consistency_of(c);
    return rule.row->check ? rule.row->check(&rule, origin, c->topology) : 0;
}

// Replaces reduce_group "host" by the number of ranks per host, if other programs have started the ranks (rank r is
// worker r). The workers that this program starts are all on this machine.
static void resolve(struct config *c, const struct rank_env *e) {
    int group = rank_env_group(e, c->workers);
    if (c->reduce_group == GROUP_HOST && group) c->reduce_group = group;
}

static bool is_independent(const struct config *c) { return consistency_row(c->variant)->on_arrival; }

// Checks each setting by itself, or against a number. An order of arrivals exists only where pushes are applied on
// arrival.
static int check(const struct config *c) {
    const struct ps_config *p = &c->ps;
    bool order = p->record_arrivals || p->replay_arrivals;
    if (star_pairs_check(c) != 0) return -1;
    const struct consistency_rule rule = consistency_of(c);
    const char *refused = push_policy_refuses(push_policy_named(&rule, NULL), c);
    if (refused)
        return fail("--topology %s: its servers do not support %s: leave out one of the two", c->topology,
                    refused);
    if (c->optimizer.row->onebit)
        return fail(
            "optimizer.type %s: workers of a ring exchange their momenta; in a star only the servers have them, and "
            "workers push gradients; use --topology zero:0, or Adam",
            c->optimizer.row->name);
    if (c->reduce_group == GROUP_HOST)
        return fail(
            "\"reduce_group\": \"host\": which of a star's workers are on one machine is known only where `starring train` "
            "starts them all, or as ranks that follow each other; give the number of workers of each machine, the same to "
            "all roles");
    int k = rule.per_update;
    if (p->max_lead > 0 && k - 1 > p->max_lead)
        return fail(
            "parameter_server.max_lead %lld: with parameter_server.pushes_per_update %d up to %d pushes of one worker wait for "
            "their update, and workers that may lack no more than %lld would wait for each other: give max_lead %d or more",
            (long long)p->max_lead, k, k - 1, (long long)p->max_lead, k - 1);
    if (order && size_times(c->workers, c->steps) > ARRIVALS_PUSHES_MAX)
        return fail(
            "%s: %d workers push %lld times in %lld steps, at most %lld pushes of a key can be recorded: give fewer "
            "--steps",
            p->record_arrivals ? "--record-arrivals" : "--replay-arrivals", c->workers,
            (long long)size_times(c->workers, c->steps), (long long)c->steps, (long long)ARRIVALS_PUSHES_MAX);
    if (p->replay_arrivals && c->out && !strcmp(c->out, p->replay_arrivals))
        return fail(
            "--replay-arrivals %s: --out is the same directory, whose files the run replaces: choose another",
            c->out);
    return 0;
}

// Rank r's process starts worker r, and the servers placed with it.
static int check_rank(const struct config *c, const struct rank_env *e) {
    if (e->kind == RANK_ENV_NONE || e->size == c->workers) return 0;
    return fail(
        "--workers %d, but %s started %d ranks, and each is the launcher of one worker: make them equal, or add --launch "
        "processes for a star on this machine only",
        c->workers, e->by, e->size);
}

static int predict(const struct config *c, const struct layout *l, const char *role, int rank,
                   struct prediction *out) {
    const struct config in = local_steps_inner(c);
    out->record_bytes = is_server(role) ? ps_server_records(&in, l, rank) : ps_worker_records(&in, l);
    if (out->record_bytes < 0) return -1;
    if (is_server(role) || ps_beside(c)) out->same_ranks = ps_server_same_ranks(c, l, rank);
    if (is_server(role) && ps_server_predict(&in, l, rank, &out->memory, &out->wire)) return -1;
    out->wire = local_steps_wire(out->wire, config_round(&in));
    if (is_server(role)) return 0;
    // Workers write the errors of their codes to a checkpoint, if they are at the same step.
    if (ps_codes(c) && !consistency_of(c).row->on_arrival)
        out->state_bytes = (size_t)l->padded * sizeof(float);
    if (ps_worker_predict(&in, l, rank, &out->memory, &out->wire)) return -1;
    local_steps_predict(c, l, out);
    return 0;
}

// ---------------------------------------------------------------- the graph of a step
// Builds the map, unless there are too many keys to list: then *m is NULL. Returns 0, or -1 after logging.
static int listed_keys(const struct config *c, const struct layout *l, struct shard_map **m) {
    struct shard_cut cut, frozen = {0};
    *m = NULL;
    if (shard_cut_of(c, l, &cut)) return -1;
    if (ps_frozen(c, l) && shard_cut_of(c, l->rest, &frozen)) return -1;
    return cut.keys + frozen.keys <= STEP_TASKS_LISTED && !(*m = shard_map_of(c, l)) ? -1 : 0;
}

// Subtracts the bytes that move in shared memory: those between a worker and the server on its own machine, which owns
// some keys of each unit.
static void take_local(const struct config *c, const struct shard_map *m, int rank, struct step_tasks *t) {
    for (struct step_task *s = t->list; s < t->list + t->count; s++) {
        if (s->kind != TASK_PUSH && s->kind != TASK_PULL) continue;
        for (int k = m->first[s->unit]; k < m->first[s->unit + 1]; k++) {
            const struct partition *p = &m->parts[k];
            if (p->shard / m->threads != rank) continue;
            if (s->kind == TASK_PUSH)
                s->moves.sent -= push_bytes(&c->ps.code, c->dtype, p->end - p->begin);
            else
                s->moves.received -= (uint64_t)(p->end - p->begin) * dtype_size(c->dtype);
        }
    }
}

static int step_tasks(const struct config *outside, const struct layout *l, int rank, struct step_tasks *t) {
    const struct config c = local_steps_inner(outside);
    if (unit_tasks(&c, l, t)) return -1;
    if (!ps_beside(&c)) return 0;
    struct shard_map *m;
    if (listed_keys(&c, l, &m)) return -1;
    if (m) take_local(&c, m, rank, t);
    if (!m) step_tasks_free(t);
    shard_map_destroy(&m);
    return 0;
}

static const char *number_or_null(char text[24], bool number, int64_t n) {
    snprintf(text, 24, "%lld", (long long)n);
    return number ? text : "null";
}

static void print_rule(const struct config *c, FILE *f) {
    const struct consistency_rule rule = consistency_of(c);
    bool decided = commit_round(c) && !rule.row->on_arrival;
    char bound[24], lead[24], grace[24], stale[24], credit[24];
    const char *policy;
    push_policy_named(&rule, &policy);
    fprintf(
        f,
        "\n\t\t\"consistency\": {\"name\": \"%s\", \"policy\": \"%s\", \"bound\": %s, \"commit\": \"%s\", \"needs\": %d, "
        "\"exact\": %s, \"lead\": %d, \"lag\": %d, \"pushes_per_update\": %d, \"max_lead\": %s, \"max_staleness\": %s, "
        "\"grace_ms\": %s, \"credit_bytes\": %s, \"read\": \"%s\"},",
        rule.row->name, policy, number_or_null(bound, rule.row->argument, rule.argument),
        decided ? "step" : "key", rule.needs, rule.row->exact ? "true" : "false", rule.lead, rule.lag,
        rule.per_update, number_or_null(lead, c->ps.max_lead > 0, c->ps.max_lead),
        number_or_null(stale, c->ps.max_staleness >= 0, c->ps.max_staleness),
        number_or_null(grace, rule.row->graces, c->ps.grace_ms),
        number_or_null(credit, c->ps.credit_bytes > 0, c->ps.credit_bytes),
        rule.oldest ? "oldest" : "newest");
}

static int step_facts(const struct config *outside, const struct layout *l, FILE *f) {
    const struct config c = local_steps_inner(outside);
    struct shard_map *m;
    if (listed_keys(&c, l, &m)) return -1;
    print_rule(&c, f);
    fprintf(f, "\n\t\t\"keys\": %s", m ? "[" : "null,");
    for (int k = 0; m && k < m->count; k++) {
        const struct partition *p = &m->parts[k];
        int64_t n = p->end - p->begin;
        fprintf(f,
                "%s\n\t\t\t{\"unit\": %d, \"bytes\": %zu, \"pull_bytes\": %zu, \"elements\": %lld, "
                "\"server\": %d, \"shard\": %d}",
                k ? "," : "", p->unit, push_bytes(&c.ps.code, c.dtype, n), (size_t)n * dtype_size(c.dtype),
                (long long)n, p->shard / m->threads, p->shard % m->threads);
    }
    if (m) fputs("],", f);
    shard_map_destroy(&m);
    return 0;
}

static bool shards_frozen(const struct config *c, const char *role, size_t *copies) {
    if (ps_by_units(c)) *copies = is_server(role);
    return ps_by_units(c);
}

static struct topology_formula formula(const struct config *outside, const char *role) {
    const struct config in = local_steps_inner(outside), *c = &in;
    struct topology_formula of_worker = {.wire = "P*b, padded, b bytes per element"};
    struct topology_formula of_server = {.wire = "N*P*b/S, padded, b bytes per element"};
    if (ps_by_units(c)) {
        snprintf(of_worker.memory, sizeof of_worker.memory, "0, and slots");
        snprintf(of_worker.wire, sizeof of_worker.wire,
                 "A*P*b out, up to 2A*P*b in, A micro-batches%s, padded",
                 ps_beside(c) ? ", (N-1)/N of it" : "");
        snprintf(of_server.wire, sizeof of_server.wire, "up to 2A*N*P*b/S out, A*N*P*b/S in%s, padded",
                 ps_beside(c) ? ", (N-1)/N of it" : "");
    }
    textbook_text(of_worker.memory, ps_worker_textbook(c), 'S');
    textbook_text(of_server.memory, ps_server_textbook(c), 'S');
    local_steps_formula(outside, &of_worker);
    return is_server(role) ? of_server : of_worker;
}

// Bytes of answers that are copies until the transport has sent them. Weights: each worker's at most once, where the
// policy copies (with shared memory they are written in place). And one snapshot.
static double copied_answers(const struct config *c, const struct push_policy *policy, double weights) {
    bool snapshots = c->eval_batches != 0 && (c->eval_every > 0 || c->eval_every_seconds > 0);
    bool copies = policy->copies && c->medium != MEDIUM_SHM;
    return (copies * c->workers + snapshots) * weights;
}

// Bytes that credits allow in the transport: a worker's own, or those of all workers of a server.
static struct topology_allowance allowance(const struct config *c, const char *role,
                                           const struct prediction *p) {
    const struct consistency_rule rule = consistency_of(c);
    const struct wire_prediction *w = &p->wire;
    // All bytes move at the end of a round.
    double round = c->local_steps.steps ? (double)c->local_steps.steps : 1;
    double open = (1 + rule.lead) * round, credit = (double)credit_of(c, INT64_MAX);
    if (!is_server(role))
        return (struct topology_allowance){.frame_bytes = fmin(open * (double)w->sent_per_step, credit)};
    double of_one = open * (double)(w->received_per_step + w->local_received_per_step) / c->workers;
    double weights = round * (double)(w->sent_per_step + w->local_sent_per_step) / c->workers;
    const struct push_policy *policy = push_policy_configured(c);
    double copies = copied_answers(c, policy, weights);
    // Each thread's own peak is counted: a worker's credits may be at one thread now, and at another later.
    double lent = c->ps.credit_bytes ? fmin(of_one, (double)(c->ps.credit_bytes * c->ps.threads)) : of_one;
    // A server that takes frames holds those of a whole step, whatever the credits: N P b / S.
    if (policy->takes_frames) lent = credit = of_one;
    double held = (policy->waiting ? policy->waiting(c, lent, weights) : 0) + copies;
    // A replay holds gradients until they are the next to apply, and answers until they are no longer requested.
    if (c->ps.replay_arrivals && !rule.lead) credit = of_one = 2 * of_one;
    return (struct topology_allowance){
        .frame_bytes = FRAME_OVERHEAD * c->workers * fmin(of_one, credit) + copies, .held_bytes = held};
}

static void consistency(const struct config *c, char out[TOPOLOGY_CONSISTENCY]) {
    const struct consistency_rule rule = consistency_of(c);
    if (consistency_is_sync(rule))
        snprintf(out, TOPOLOGY_CONSISTENCY, "sync");
    else if (rule.row->argument)
        snprintf(out, TOPOLOGY_CONSISTENCY, "%s:%d", rule.row->name, rule.argument);
    else
        snprintf(out, TOPOLOGY_CONSISTENCY, "%s", rule.row->name);
}

static void describe(const struct config *c, struct cJSON *summary) {
    cJSON_AddStringToObject(summary, "consistency", consistency_row(c->variant)->name);
    cJSON_AddStringToObject(summary, "security", ps_security_name(c));
}

static void explain(const struct config *c, struct topology_texts *out) {
    const struct consistency_rule rule = consistency_of(c);
    out->picture = "star";
    out->how =
        "Servers keep the fp32 masters and the optimizer's states, each of them for its part of the model. A worker pushes the gradient "
        "of each layer as soon as its backward pass has made it, and pulls the new weights before its next forward pass needs them.";
    out->rule = rule.row->how;
    if (ps_codes(c))
        out->differs =
            "workers push codes of their gradients (parameter_server.compression), and send later what a code has left out";
    if (ps_elastic(c))
        out->differs =
            "workers may join and leave (--elastic), and a step closes without those that are away";
    out->waits_for_all = consistency_freezes(rule);
    if (!consistency_is_sync(rule)) out->differs = rule.row->differs;
    if (rule.oldest)
        out->differs =
            "each step is computed on weights that lack the last S updates (parameter_server.read oldest), always as many of them";
    if (rule.row->on_arrival) out->loss_of = LOSS_OF_RANK_0;
    if (ps_in_part(c)) out->loss_of = LOSS_OF_THE_LAST;
    local_steps_explain(c, out);
}

// A launcher needs no key: it makes one.
static int check_key(const struct config *c) {
    struct job_key key;
    int rc = c->security.insecure ? job_key_open(true, &key) : job_key_given(&key);
    job_key_forget(&key);
    return rc < 0 ? -1 : 0;
}

static const char *unskipped(const struct config *c) { return commit_round(c) ? NULL : PS_UNSKIPPED; }

static const char star_is[] = "a star is a parameter server that waits for every worker's gradient",
                  on_arrival[] = "each gradient is an update on arrival",
                  bounded[] = "no worker is more than S steps ahead",
                  drops[] = "a step closes without the slowest B workers";
static const struct topology_alias words[] = {{"ps", "ps:sync", star_is},
                                              {"star", "ps:sync", star_is},
                                              {"parameterserver", "ps:sync", star_is},
                                              {"paramserver", "ps:sync", star_is},
                                              {"pslite", "ps:sync", star_is},
                                              {"sync", "ps:sync", NULL},
                                              {"synchronous", "ps:sync", NULL},
                                              {"pssynchronous", "ps:sync", NULL},
                                              {"bsp", "ps:sync", star_is},
                                              {"async", "ps:async", NULL},
                                              {"asynchronous", "ps:async", NULL},
                                              {"psasynchronous", "ps:async", NULL},
                                              {"asgd", "ps:async", on_arrival},
                                              {"asp", "ps:async", on_arrival},
                                              {"hogwild", "ps:async", on_arrival},
                                              {"downpour", "ps:async", on_arrival},
                                              {"ssp", "ps:ssp:S", bounded},
                                              {"stalesynchronous", "ps:ssp:S", bounded},
                                              {"boundeddelay", "ps:ssp:S", bounded},
                                              {"bounded", "ps:ssp:S", bounded},
                                              {"backup", "ps:backup:B", drops},
                                              {"backupworkers", "ps:backup:B", drops},
                                              {"ksync", "ps:backup:B", drops},
                                              {"psksync", "ps:backup:B", drops},
                                              {"quorum", "ps:quorum:Q", "a step closes with Q workers"},
                                              {0}};

const struct topology_row topology_star = {
    .parse = parse,
    .variant = variant,
    .words = words,
    .check_name = check_name,
    .consistency = consistency,
    .textbook = 1,
    .roles = (const struct topology_role[]){{"worker", offsetof(struct config, workers)},
                                            {"server", offsetof(struct config, ps.servers)},
                                            {0}},
    .default_workers = 2,
    .takes_groups = true,
    .takes_local_steps = true,
    .is_independent = is_independent,
    .launches = 1 << LAUNCH_DEFAULT | 1 << LAUNCH_PROCESSES,
    .launch_advice =
        "a star's roles are processes of their own; use --launch processes, or start them one by one "
        "(starring scheduler --help)",
    .scheduled = true,
    .reports_staleness = true,
    .messages = true,
    .meet = member_rendezvous_options,
    .admission = ps_security_words,
    .unskipped = unskipped,
    .resolve = resolve,
    .check = check,
    .check_rank = check_rank,
    .check_machine = check_key,
    .predict = predict,
    .step_tasks = step_tasks,
    .step_facts = step_facts,
    .formula = formula,
    .shards_frozen = shards_frozen,
    .allowance = allowance,
    .describe = describe,
    .explain = explain,
    .run = launch_star,
};
