#include "shared/command/evaluate_command.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "shared/command/commands.h"
#include "shared/core/error.h"
#include "shared/core/json.h"
#include "shared/core/path.h"
#include "shared/launch/evaluate_dir.h"
#include "shared/launch/stop.h"
#include "shared/report/evals.h"
#include "shared/report/figure.h"
#include "shared/report/summary.h"

// With every digit, as in evals.jsonl.
static void put_exact(cJSON *o, const char *key, double x) {
    char text[FIGURE_NUMBER_MAX];
    cJSON_AddRawToObject(o, key, figure_number_text(text, x));
}

static void print_json(const char *dir, const struct evals *e) {
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "dir", dir);
    cJSON *all = cJSON_AddArrayToObject(o, "evals");
    for (int i = 0; i < e->count; i++) {
        const struct eval_record *r = &e->all[i];
        cJSON *one = cJSON_CreateObject();
        json_put(one, "step", (double)r->step);
        json_put(one, "samples", (double)r->samples);
        json_put(one, "updates", (double)r->updates);
        put_exact(one, "seconds", r->seconds);
        put_exact(one, "val_loss", r->val_loss);
        put_exact(one, "unigram_entropy", r->unigram_entropy);
        json_put(one, "tokens", (double)r->tokens);
        cJSON_AddItemToArray(all, one);
    }
    json_print(stdout, o);
    cJSON_Delete(o);
}

// Adds the evaluation's figures to the summary that is there.
static int renew_summary(const struct topology_table *t, const char *dir) {
    if (!has_file(dir, "summary.json")) return 0;
    cJSON *s = summary_merge(t, dir);
    cJSON_Delete(s);
    return s ? 0 : -1;
}

static int run(const struct topology_table *t, const char *dir, bool keep, bool json) {
    struct evaluate_dir_options o = {.topologies = t,
                                     .dir = dir,
                                     .keep = keep,
                                     .stop = stop_install("the batch in hand"),
                                     .say = json ? stderr : stdout};
    struct evals evals;
    if (!has_file(dir, "config.json") || !has_file(dir, "metrics.jsonl")) {
        fail("evaluate %s: %s", dir,
             access(dir, X_OK) ? strerror(errno)
                               : "no run directory: it holds no config.json and metrics.jsonl");
        return EXIT_USAGE;
    }
    int waiting = evaluate_waiting(dir);
    enum evaluated rc = evaluate_dir(&o);
    if (waiting && rc != EVALUATE_FAILED && renew_summary(t, dir)) rc = EVALUATE_FAILED;
    if (rc == EVALUATE_INTERRUPTED) evaluate_say_waiting(dir, "evaluation interrupted: ");
    if (rc == EVALUATE_FAILED || evals_read(dir, &evals)) return EXIT_RUN_FAILED;
    if (!waiting && !json)
        printf("%s holds no snapshots; %d evaluation%s in evals.jsonl\n", dir, evals.count,
               evals.count == 1 ? "" : "s");
    if (json) print_json(dir, &evals);
    evals_free(&evals);
    return rc == EVALUATE_DONE ? 0 : rc == EVALUATE_INTERRUPTED ? 128 + *o.stop : EXIT_RUN_FAILED;
}

int evaluate_command(const struct topology_table *t, int argc, char **argv) {
    struct cli_args args;
    enum cli_outcome outcome = cli_parse(&command_evaluate, argc, argv, &args);
    int status = outcome == CLI_HELP_SHOWN ? 0 : EXIT_USAGE;
    if (outcome == CLI_RUN && args.word_count != 1)
        fail("evaluate: name one run directory");
    else if (outcome == CLI_RUN)
        status =
            run(t, args.words[0], cli_get(&args, "keep-snapshots") != NULL, cli_get(&args, "json") != NULL);
    cli_args_free(&args);
    return status;
}
