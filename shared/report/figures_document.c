// The list of all figures, document by document, from which `make docs` writes docs/files.md.
#include <stdlib.h>
#include <string.h>

#include "shared/core/error.h"
#include "shared/report/evals.h"
#include "shared/report/figures.h"
#include "shared/report/metrics.h"

#define DRY_RUN "train --dry-run --json"  // the name of this document

// ---------------------------------------------------------------- the dry run, apart from the figures above
static const struct figure of_dry_runs[] = {
    {"textbook", NULL, "a row per topology and role, for the same model, workers and servers",
     .type = "list"},
    {"textbook[].topology", NULL, NULL, .type = "string"},
    {"textbook[].formula", NULL, "the formula of `formula_bytes`", .type = "string"},
    {"step", NULL,
     "a worker's step as a graph of tasks, for programs that predict time. With `OneBitAdam`: a step of its warm-up",
     .type = "object"},
    {"step.micro_batches", NULL, "`gradient_accumulation_steps`", .type = "integer"},
    {"step.every", "steps", "tasks with `round` run in each so many steps: `local_steps.steps`, else 1",
     .type = "integer"},
    {"step.units", NULL,
     "the model's units, from the embedding to the head; with LoRA those with adapters, then what is frozen of each",
     .type = "list"},
    {"step.units[].name", NULL, NULL, .type = "string"},
    {"step.units[].elements", NULL, "parameters", .type = "integer"},
    {"step.units[].padded", NULL, "elements that are stored and moved", .type = "integer"},
    {"step.units[].forward_flops", "FLOP",
     "of one micro-batch on one worker, products and attention in full. 0 of the head, which computes in its "
     "backward pass",
     .type = "number"},
    {"step.units[].backward_flops", "FLOP", "the same; with what is recomputed", .type = "number"},
    {"step.consistency", NULL, "when pushes become updates", .type = "object", .when = "`ps:*`"},
    {"step.consistency.name", NULL, "`sync`, `async`, ..", .type = "string", .when = "`ps:*`"},
    {"step.consistency.policy", NULL, "of its pushes: the file `ps/server/push_POLICY.c`", .type = "string",
     .when = "`ps:*`"},
    {"step.consistency.bound", NULL, "the number in the topology's name; else null",
     .type = "integer or null", .when = "`ps:*`"},
    {"step.consistency.commit", NULL,
     "`key`: a key is updated when its pushes are there. `step`: when the scheduler has decided for all keys "
     "(`gradient_clipping`, fp16)",
     .type = "string", .when = "`ps:*`"},
    {"step.consistency.needs", NULL, "pushes that complete a key's step", .type = "integer",
     .when = "`ps:*`"},
    {"step.consistency.exact", NULL, "if more pushes arrive in time, only as many count", .type = "boolean",
     .when = "`ps:*`"},
    {"step.consistency.lead", "steps", "steps that may be open besides the oldest one", .type = "integer",
     .when = "`ps:*`"},
    {"step.consistency.lag", "steps", "a worker may begin a step without the outcome of so many",
     .type = "integer", .when = "`ps:*`"},
    {"step.consistency.pushes_per_update", NULL, "the mean of so many pushes is one update",
     .type = "integer", .when = "`ps:*`"},
    {"step.consistency.max_lead", "steps", "`parameter_server.max_lead`; null: no limit",
     .type = "integer or null", .when = "`ps:*`"},
    {"step.consistency.max_staleness", "updates", "`parameter_server.max_staleness`; null: no limit",
     .type = "integer or null", .when = "`ps:*`"},
    {"step.consistency.credit_bytes", "bytes", "`parameter_server.credit_bytes`; null: by what is free",
     .type = "integer or null", .when = "`ps:*`"},
    {"step.consistency.grace_ms", "ms", "`parameter_server.grace_ms` of `ps:quorum`; else null",
     .type = "integer or null", .when = "`ps:*`"},
    {"step.consistency.read", NULL, "`newest` or `oldest` weights that the bound allows", .type = "string",
     .when = "`ps:*`"},
    {"step.keys", NULL, "the partitions, by unit; null with more than 10^6", .type = "list or null",
     .when = "`ps:*`"},
    {"step.keys[].unit", NULL, "its index in `units`", .type = "integer", .when = "`ps:*`"},
    {"step.keys[].bytes", "bytes", "of a push", .type = "integer", .when = "`ps:*`"},
    {"step.keys[].pull_bytes", "bytes", "of its weights", .type = "integer", .when = "`ps:*`"},
    {"step.keys[].elements", NULL, NULL, .type = "integer", .when = "`ps:*`"},
    {"step.keys[].server", NULL, NULL, .type = "integer", .when = "`ps:*`"},
    {"step.keys[].shard", NULL, "the server's thread", .type = "integer", .when = "`ps:*`"},
    {"step.distances", NULL,
     "for each step until they repeat: how many places further are the ranks to which a rank sends",
     .type = "list", .when = "`gossip`"},
    {"step.distances[]", NULL, NULL, .type = "list", .when = "`gossip`"},
    {"step.distances[][]", NULL, NULL, .type = "integer", .when = "`gossip`"},
    {"step.workers.rank", NULL, "the worker that moves most; the others do the same", .type = "integer"},
    {"step.workers.tasks", NULL,
     "the tasks. Those of one stream run one after the other, in this order; null with more than 10^6, or without "
     "`keys` where servers run on workers",
     .type = "list or null"},
    {"step.workers.tasks[].task", NULL,
     "computed: `forward`, `backward`, `norm`, `decide`, `update`, `mix` (of gossip), `delta` (of local steps). Moved: "
     "`all_gather`, `reduce_scatter`, `all_reduce`, `push`, `pull`, `exchange`; with offload `down` and `up` between "
     "device and host, `read` and `write` of a disk",
     .type = "string"},
    {"step.workers.tasks[].stream", NULL,
     "`compute`, `gather`, `reduce`, `push`, `pull`; `decide`: compute does not wait for it; `down`, `host`, `up`, "
     "`read`, `write`: of offload",
     .type = "string"},
    {"step.workers.tasks[].unit", NULL, "its index in `units`", .type = "integer"},
    {"step.workers.tasks[].units", NULL, "instead of `unit`: the units that one transfer moves",
     .type = "list", .when = "bundles"},
    {"step.workers.tasks[].units[]", NULL, NULL, .type = "integer", .when = "bundles"},
    {"step.workers.tasks[].micro", NULL, "the micro-batch; not of tasks after them", .type = "integer"},
    {"step.workers.tasks[].round", NULL, "the task runs only at the end of a round", .type = "boolean",
     .when = "`--local-steps`"},
    {"step.workers.tasks[].elements", NULL, "that this worker computes", .type = "integer",
     .when = "not `ps:*`"},
    {"step.workers.tasks[].bytes", "bytes", "of the whole buffer that is moved", .type = "integer",
     .when = "not `local`"},
    {"step.workers.tasks[].sent", "bytes",
     "payload that this worker sends. The sum over the tasks, divided by `every`, is `wire[].predicted_sent`",
     .type = "integer", .when = "not `local`"},
    {"step.workers.tasks[].received", "bytes", "as `sent`", .type = "integer", .when = "not `local`"},
    {"step.workers.tasks[].pattern", NULL,
     "how it moves: `all_to_all` (a piece to each member of the team), `ring` (a library's), `neighbours`, `servers`, "
     "`scheduler`, `host` (within the machine)",
     .type = "string", .when = "not `local`"},
    {"step.workers.tasks[].control", NULL, "its bytes are no payload", .type = "boolean",
     .when = "`ps:*`, `zero:*`"},
    {"step.workers.tasks[].team", NULL,
     "`all`, `within` a group, `across` the groups: the ranks with the same place in theirs",
     .type = "string", .when = "`zero:*`"},
    {"step.workers.tasks[].team_size", NULL, NULL, .type = "integer", .when = "`zero:*`"},
    {"step.workers.tasks[].neighbour", NULL, "index in the step's `distances`", .type = "integer",
     .when = "`gossip`"},
    {"step.workers.tasks[].messages", NULL, "that this worker sends", .type = "integer",
     .when = "`zero:*`, `gossip`"},
    {"step.workers.tasks[].across_sent", "bytes", "of `sent`, to ranks of other groups", .type = "integer",
     .when = "with `reduce_group`"},
    {"step.workers.tasks[].needs", NULL, "indices of tasks of other streams that must have ended",
     .type = "list"},
    {"step.workers.tasks[].needs[]", NULL, NULL, .type = "integer", .when = "not `local`"},
    {"step.workers.tasks[].needs_previous", NULL, "the same, of the previous step", .type = "list"},
    {"step.workers.tasks[].needs_previous[]", NULL, NULL, .type = "integer", .when = "not `local`"},
    {"here", NULL, "whether the run's ranks on this machine fit its memory", .type = "object"},
    {"here.limits", NULL, "an element per limit of memory that is known", .type = "list"},
    {"here.limits[].limit", NULL, "its name", .type = "string"},
    {"here.limits[].predicted_bytes", "bytes", "what the ledger will count, of all ranks here",
     .type = "integer"},
    {"here.limits[].allowed_bytes", "bytes", "upper bound of what the ledger does not count",
     .type = "number"},
    {"here.limits[].available_bytes", "bytes", "what is left", .type = "number"},
    {"here.limits[].fits", NULL, NULL, .type = "boolean"},
    {"here.fits", NULL, "all of them", .type = "boolean"},
    {"here.missing", NULL, "why the run would not start here; null: it would", .type = "string or null"},
};

// ---------------------------------------------------------------- all of them
struct row_list {
    struct figure *rows;
    size_t count;
};

// rest: f's key, or the end of it, to put after prefix.
static struct figure *add_row(struct row_list *t, const struct figure *f, const char *prefix,
                              const char *rest) {
    t->rows = xrealloc(t->rows, (t->count + 1) * sizeof *t->rows);
    t->rows[t->count] = *f;
    t->rows[t->count].key = xasprintf("%s%s", prefix, rest);
    return &t->rows[t->count++];
}

// Adds the rows that list `in` includes, with all their members; removes the first `cut` characters of their keys.
static void add_taken(struct row_list *t, struct figure_rows rows, unsigned in, const char *prefix,
                      size_t cut) {
    for (const struct figure *f = rows.rows, *o; f < rows.rows + rows.count; f++) {
        size_t top = strcspn(f->key, ".[");
        for (o = rows.rows; strncmp(o->key, f->key, top) != 0 || o->key[top]; o++) continue;
        if (o->in & in) add_row(t, f, prefix, f->key + cut);
    }
}

static bool has_row(struct figure_rows rows, const char *key) {
    for (size_t i = 0; i < rows.count; i++)
        if (!strcmp(rows.rows[i].key, key)) return true;
    return false;
}

// Returns the rows of a document: its own, and after each of them those that it copies or joins from ranks' reports.
static struct row_list rows_of(struct figure_rows own) {
    static const struct {
        const char *after, *prefix;
        unsigned in;
        size_t cut;
    } lists[] = {{"memory", "memory[].", IN_MEMORY, 0},
                 {"wire", "wire[].", IN_WIRE, 0},
                 {"textbook", "textbook[].", IN_TEXTBOOK, 0},
                 {"server_time", "server_time[]", IN_SERVER_TIME, sizeof "server_time" - 1}};
    struct row_list t = {0};
    const struct figure_rows ranks = rank_figures();
    for (size_t i = 0; i < own.count; i++) {
        const char *key = own.rows[i].key;
        add_row(&t, &own.rows[i], "", key);
        if (!strcmp(key, "skipped")) add_taken(&t, run_figures(), IN_TOP, "", 0);
        for (size_t k = 0; k < sizeof lists / sizeof *lists; k++)
            if (!strcmp(key, lists[k].after))
                add_taken(&t, ranks, lists[k].in, lists[k].prefix, lists[k].cut);
        for (const struct figure *f = ranks.rows; f < ranks.rows + ranks.count; f++) {
            const char *to = f->to ? f->to : f->join ? f->key : "";
            bool member = !strncmp(to, key, strlen(key)) && to[strlen(key)] == '.' &&
                          !strchr(to + strlen(key) + 1, '.');
            // Joined figures at the top follow the time in which they were counted.
            bool top = !strcmp(key, "seconds") && *to && !strchr(to, '.') && !has_row(own, to);
            if (!member && !top) continue;
            struct figure *row = add_row(&t, f, "", to);
            row->predicted = false;
            if (f->join == JOIN_EACH) row->type = "list";
        }
    }
    return t;
}

static void describe_rows(cJSON *list, struct figure_rows own, const char *file, bool predicted) {
    struct row_list t = rows_of(own);
    figures_describe(list, &(struct figure_document){file, "", {t.rows, t.count}, .predicted = predicted});
    for (size_t i = 0; i < t.count; i++) free((char *)t.rows[i].key);
    free(t.rows);
}

cJSON *figures_of_summary(void) {
    cJSON *list = cJSON_CreateArray();
    describe_rows(list, summary_figures(), "summary.json", false);
    return list;
}

cJSON *figures_document(void) {
    cJSON *list = figures_of_summary();
    const struct figure_document documents[] = {
        {"ranks/worker-*.json", "", rank_figures(), .kind = NOT_OF_WORKERS},
        {"ranks/worker-*.json", "run.", run_figures(), .when = "worker 0"},
        {"ranks/server-*.json", "", rank_figures(), .kind = NOT_OF_SERVERS},
        {"metrics.jsonl", "", step_figures(), .kind = 0},
        {"evals.jsonl", "", eval_figures(), .kind = 0},
    };
    for (size_t i = 0; i < sizeof documents / sizeof *documents; i++) figures_describe(list, &documents[i]);
    describe_rows(list, summary_figures(), DRY_RUN, true);
    describe_rows(list, FIGURE_ROWS(of_dry_runs), DRY_RUN, false);
    return list;
}
