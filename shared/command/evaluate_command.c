// `starring evaluate RUN`.
#include <cjson/cJSON.h>
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "shared/command/commands.h"
#include "shared/core/error.h"
#include "shared/core/file.h"
#include "shared/core/json.h"
#include "shared/launch/closing.h"
#include "shared/launch/stop.h"
#include "shared/report/evals.h"
#include "shared/report/figure.h"
#include "shared/report/summary.h"

// All evaluations, with all digits, as in evals.jsonl.
static void print_json(const char *dir, const struct evals *e) {
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "dir", dir);
    cJSON *all = cJSON_AddArrayToObject(o, "evals");
    for (int i = 0; i < e->count; i++) {
        char line[FIGURE_LINE_MAX];
        figures_line(line, eval_figures(), &e->all[i]);
        cJSON_AddItemToArray(all, cJSON_CreateRaw(line));
    }
    json_print(stdout, o);
    cJSON_Delete(o);
}

static int run(const struct topology_table *t, const struct cli_args *a) {
    if (a->word_count != 1) {
        fail("evaluate: name one run directory");
        return EXIT_USAGE;
    }
    const char *dir = a->words[0];
    bool json = cli_get(a, "json") != NULL;
    struct evaluate_dir_options o = {.topologies = t,
                                     .dir = dir,
                                     .keep = cli_get(a, "keep-snapshots") != NULL,
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
    // Adds the evaluation's figures to an existing summary.
    if (waiting && rc != EVALUATE_FAILED && has_file(dir, "summary.json")) {
        cJSON *s = summary_merge(t, dir);
        if (!s) rc = EVALUATE_FAILED;
        cJSON_Delete(s);
    }
    if (rc == EVALUATE_FAILED || evals_read(dir, &evals)) return EXIT_RUN_FAILED;
    if (!waiting && !json)
        printf("%s holds no snapshots; %d evaluation%s in evals.jsonl\n", dir, evals.count,
               evals.count == 1 ? "" : "s");
    if (json) print_json(dir, &evals);
    evals_free(&evals);
    return rc == EVALUATE_DONE ? 0 : rc == EVALUATE_INTERRUPTED ? 128 + *o.stop : EXIT_RUN_FAILED;
}

int evaluate_command(const struct topology_table *t, int argc, char **argv) {
    return cli_run(&command_evaluate, t, argc, argv, run);
}
