// `starring summary DIR`: prints the table of a run that has ended, or what exists of a run that is running or ended
// in disorder. Only reads; writes DIR/summary.json only if a finished job on many machines has none yet.
//
// Exit status: 0 complete; 1 failed, interrupted or dead; 2 no run directory; 3 running.
#include "shared/core/json.h"
#include "shared/report/summary.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "shared/command/commands.h"
#include "shared/core/disk.h"
#include "shared/core/error.h"
#include "shared/core/file.h"
#include "shared/core/text.h"
#include "shared/core/topology_row.h"
#include "shared/predict/plan_search.h"
#include "shared/report/figures.h"
#include "shared/report/metrics.h"
#include "shared/report/run_state.h"

#define EXIT_STILL_RUNNING 3

// The contents of the run directory.
struct found {
    const struct topology_table *topologies;
    const char *dir;
    struct run_state state;
    struct config *config;  // NULL: no readable config.json
    bool damaged;           // a file cannot be read to its end; it has been reported
    bool has_metrics;       // metrics holds the totals of its lines
    struct metrics_totals metrics;
    cJSON *summary;            // summary.json, NULL: none, or an incomplete one
    cJSON *reports, *missing;  // reports, and names of ranks without a report: "worker 0"
};

static bool is_run(const char *dir) {
    static const char *const marks[] = {"state.json", "metrics.jsonl", "summary.json", "ranks"};
    struct stat about;
    if (stat(dir, &about) || !S_ISDIR(about.st_mode)) {
        fail("summary %s: %s", *dir ? dir : "\"\"",
             *dir && !access(dir, F_OK) ? "is a file; name the run's directory"
                                        : "there is no such directory");
        return false;
    }
    if (access(dir, X_OK)) {
        fail("summary %s: %s", dir, strerror(errno));
        return false;
    }
    for (size_t i = 0; i < sizeof marks / sizeof marks[0]; i++)
        if (has_file(dir, marks[i])) return true;
    fail("summary %s: no run directory: it holds none of state.json, metrics.jsonl, summary.json and ranks/",
         dir);
    return false;
}

// Returns whether a rank's report exists. If a summary must be built from it, it must also be complete.
static bool has_report(struct found *f, const char *file) {
    if (!has_file(f->dir, file)) return false;
    if (f->summary) return true;
    char *text = run_file_read(f->dir, file, true);
    cJSON *o = text ? json_parse(text, strlen(text)) : NULL;
    bool whole = cJSON_IsObject(o);
    if (!whole) warn("%s/%s is not whole", f->dir, file);
    cJSON_Delete(o);
    free(text);
    return whole;
}

static void look(struct found *f) {
    char *path = xasprintf("%s/config.json", f->dir);
    run_state_read(f->dir, &f->state);
    f->reports = cJSON_CreateArray();
    f->missing = cJSON_CreateArray();
    bool has_config = !access(path, F_OK), measured = has_file(f->dir, "metrics.jsonl");
    if (!has_config) warn("%s is missing, so the configuration of the run is not known", path);
    f->config = has_config ? config_load(f->topologies, path, NULL, 0) : NULL;
    if (has_config && !f->config)
        fail("%s is damaged or of another version, so the configuration of the run is not known", path);
    free(path);
    f->has_metrics = measured && !metrics_read(f->dir, &f->metrics);
    f->damaged = (has_config && !f->config) || (measured && !f->has_metrics);
    if (f->has_metrics && f->metrics.torn)
        warn("%s/%s: the last line is not whole: it is left out", f->dir, f->metrics.torn);
    char *text = run_file_read(f->dir, "summary.json", true);
    const cJSON *s = f->summary = text ? json_parse(text, strlen(text)) : NULL;
    // Complete if it has the values for the first lines of the table.
    if (text && !(cJSON_IsString(json_item(s, "topology")) && isfinite(json_number(s, "steps")) &&
                  isfinite(json_number(s, "workers")))) {
        warn("%s/summary.json is not whole: what the ranks left is put together again", f->dir);
        cJSON_Delete(f->summary);
        f->summary = NULL;
    }
    free(text);
    // Where workers share a budget, the lines are worker 0's own batches.
    const cJSON *own = json_item(f->summary, "batches");
    double steps = own && own->child ? own->child->valuedouble : json_number(f->summary, "steps");
    // Whether the run had any step to do.
    bool any = own || !(json_number(f->summary, "resumed_from") >= steps);
    if (f->has_metrics && any && (double)f->metrics.last_step < steps) {
        fail("%s/metrics.jsonl is cut: it ends with step %lld, and %s has made %.0f", f->dir,
             (long long)f->metrics.last_step, own ? "worker 0" : "the run", steps);
        f->damaged = true;
    }
    if (!f->config) return;
    for (const struct topology_role *r = f->config->row->roles; r->name; r++)
        for (int i = 0; i < config_ranks(f->config, r->name); i++) {
            char *file = xasprintf("ranks/%s-%d.json", r->name, i), *name = xasprintf("%s %d", r->name, i);
            cJSON_AddItemToArray(has_report(f, file) ? f->reports : f->missing, cJSON_CreateString(name));
            free(file);
            free(name);
        }
}

// Without a state.json (an earlier version, or a star started by hand whose worker 0 never started) the other files
// decide.
static enum run_phase phase_of(const struct found *f) {
    if (f->state.phase != RUN_UNKNOWN) return f->state.phase;
    const char *word = json_text(f->summary, "state", NULL);
    if (f->summary && !word) return RUN_COMPLETE;
    if (word)
        return !strcmp(word, run_phase_word(RUN_COMPLETE)) || summary_unkept(f->summary) ? RUN_COMPLETE
                                                                                         : RUN_INTERRUPTED;
    bool all = f->config && f->has_metrics && f->metrics.last_step >= f->config->steps &&
               !cJSON_GetArraySize(f->missing);
    return all ? RUN_COMPLETE : RUN_UNKNOWN;
}

// Returns everything that exists as one document, for runs without a summary.
static cJSON *document(const struct found *f, enum run_phase phase) {
    const struct metrics_totals *m = &f->metrics;
    const struct config *c = f->config;
    char last[32];
    bool any = f->has_metrics && m->steps > 0;
    cJSON *o = cJSON_CreateObject();
    json_put_text(o, "state", run_phase_word(phase));
    json_put_text(o, "dir", f->dir);
    json_put_text(o, "topology", c ? c->topology : NULL);
    json_put_text(o, "model", c ? c->model : NULL);
    json_put_text(o, "dtype", c ? dtype_name(c->dtype) : NULL);
    json_put(o, "workers", c ? c->workers : NAN);
    json_put(o, "servers", c ? config_ranks(c, "server") : NAN);
    json_put(o, "steps", (double)(any ? m->last_step : 0));
    json_put(o, "steps_planned", c ? (double)c->steps : NAN);
    json_put(o, "skipped", (double)(any ? m->skipped : 0));
    cJSON *loss = cJSON_AddObjectToObject(o, "loss");
    json_put(loss, "first", any ? m->loss_first : NAN);
    json_put(loss, "last", any ? m->loss_last : NAN);
    json_put(o, "val_loss", any ? m->val_loss : NAN);
    json_put(o, "tokens_per_second", any ? summary_rate(m, (double)m->tokens / (double)m->steps) : NAN);
    json_put_text(o, "last_line", any ? format_utc(last, (time_t)m->written_s) : NULL);
    json_put(o, "last_line_seconds_ago", any ? fmax(0, (double)time(NULL) - m->written_s) : NAN);
    json_put(o, "pid", f->state.pid > 0 ? (double)f->state.pid : NAN);
    json_put_text(o, "host", f->state.host);
    json_put_text(o, "started", f->state.started);
    json_put_text(o, "ended", f->state.ended);
    json_put_text(o, "why", f->state.why);
    cJSON_AddItemToObject(o, "reports", cJSON_Duplicate(f->reports, 1));
    cJSON_AddItemToObject(o, "missing_reports", cJSON_Duplicate(f->missing, 1));
    return o;
}

static void print_state(const struct found *f, enum run_phase phase) {
    const struct run_state *s = &f->state;
    fputs("\nstate       ", stdout);
    if (phase == RUN_RUNNING && s->elsewhere)
        printf(
            "running on %s, process %lld, since %s, according to state.json; %s cannot be checked from this machine\n",
            s->host, (long long)s->pid, s->started, s->host);
    else if (phase == RUN_RUNNING)
        printf("running: process %lld, since %s\n", (long long)s->pid, s->started);
    else if (phase == RUN_DEAD)
        printf("died: process %lld, started %s, no longer exists and wrote no reason\n", (long long)s->pid,
               s->started);
    else if (phase == RUN_UNKNOWN)
        printf("not finished; without state.json it is not known whether it is running\n");
    else
        printf("%s%s%s%s%s\n", run_phase_word(phase), *s->ended ? " at " : "", s->ended, *s->why ? ": " : "",
               s->why);
}

static void print_names(const char *label, const cJSON *names) {
    const cJSON *n;
    if (!cJSON_GetArraySize(names)) return;
    fputs(label, stdout);
    cJSON_ArrayForEach(n, names) printf("%s%s", n == names->child ? "" : ", ", cJSON_GetStringValue(n));
    putchar('\n');
}

static void print_found(const struct found *f, enum run_phase phase, const cJSON *o) {
    char count[32];
    const struct config *c = f->config;
    print_state(f, phase);
    if (c) {
        printf("run         %s, %d worker%s", c->topology, c->workers, c->workers == 1 ? "" : "s");
        int servers = config_ranks(c, "server");
        if (servers) printf(", %d server%s", servers, servers == 1 ? "" : "s");
        printf(", %s, %s\n", dtype_name(c->dtype), c->model);
    }
    printf("steps       %.0f", json_number(o, "steps"));
    if (c) printf(" of %lld", (long long)c->steps);
    if (f->has_metrics && f->metrics.steps > 0) {
        printf(", %.0f skipped; the last line of metrics.jsonl is %.0f s old\n", json_number(o, "skipped"),
               json_number(o, "last_line_seconds_ago"));
        printf("loss        %.4f -> %.4f\n", f->metrics.loss_first, f->metrics.loss_last);
        if (isfinite(f->metrics.val_loss)) printf("held out    %.4f\n", f->metrics.val_loss);
        double rate = json_number(o, "tokens_per_second");
        if (isfinite(rate)) printf("speed       %s tokens/s so far\n", format_count(count, (int64_t)rate));
    } else {
        putchar('\n');
    }
    print_names("reported    ", f->reports);
    print_names(phase == RUN_RUNNING ? "no report   yet: " : "no report   ", f->missing);
    printf("files       %s\n", f->dir);
}

// Prints the table of a run that ended in order. Returns false if the files for it are missing; most values come from
// worker 0's report. The table becomes the run's summary.json only if every rank has left a report.
static bool show_summary(struct found *f, enum run_phase phase, bool json) {
    bool worker_0 = true;
    const cJSON *n;
    cJSON_ArrayForEach(n, f->missing) worker_0 &= strcmp(cJSON_GetStringValue(n), "worker 0") != 0;
    if (!f->summary && (!f->config || !f->has_metrics || !worker_0)) return false;
    bool none = !has_file(f->dir, "summary.json") && !cJSON_GetArraySize(f->missing), made = !f->summary;
    if (made)
        f->summary = none && phase == RUN_COMPLETE ? summary_merge(f->topologies, f->dir)
                                                   : summary_build(f->topologies, f->dir);
    if (!f->summary) return false;
    if (made) summary_warn_missing(f->summary, f->dir);
    if (json)
        json_print(stdout, f->summary);
    else
        summary_print(stdout, f->dir, f->summary);
    return true;
}

static int run(const struct topology_table *t, const struct cli_args *a) {
    bool json = cli_get(a, "json") != NULL;
    if (cli_get(a, "figures")) {
        cJSON *all = figures_document();
        figures_describe(all, &(struct figure_document){PLAN_DOCUMENT, "", plan_head_figures(), .kind = 0});
        figures_describe(
            all, &(struct figure_document){PLAN_DOCUMENT, "plans[].", plan_figures(), .when = "a plan fits"});
        figures_describe(
            all, &(struct figure_document){PLAN_DOCUMENT, "least.", plan_figures(), .when = "none fits"});
        json_print(stdout, all);
        cJSON_Delete(all);
        return 0;
    }
    if (a->word_count != 1) {
        fail("summary: which run directory?");
        return EXIT_USAGE;
    }
    struct found f = {.topologies = t, .dir = a->words[0]};
    if (!is_run(f.dir)) return EXIT_USAGE;
    look(&f);
    enum run_phase phase = phase_of(&f);
    bool ended = phase == RUN_COMPLETE || phase == RUN_INTERRUPTED;
    bool table = ended && show_summary(&f, phase, json);
    if (!table) {
        cJSON *o = document(&f, phase);
        if (json)
            json_print(stdout, o);
        else
            print_found(&f, phase, o);
        cJSON_Delete(o);
    }
    // A complete run with damaged files is not shown completely.
    bool whole = phase == RUN_COMPLETE && table && !f.damaged && !summary_unkept(f.summary);
    config_destroy(&f.config);
    if (f.has_metrics) metrics_totals_free(&f.metrics);
    cJSON_Delete(f.summary);
    cJSON_Delete(f.reports);
    cJSON_Delete(f.missing);
    return phase == RUN_RUNNING ? EXIT_STILL_RUNNING : whole ? 0 : EXIT_RUN_FAILED;
}

int summary_command(const struct topology_table *t, int argc, char **argv) {
    return cli_run(&command_summary, t, argc, argv, run);
}
