#include "shared/launch/run.h"

#include <cjson/cJSON.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include "shared/core/error.h"
#include "shared/launch/stop.h"
#include "shared/report/closing.h"
#include "shared/report/metrics.h"
#include "shared/report/run_dir.h"
#include "shared/report/run_state.h"
#include "shared/report/summary.h"

int run_begin(struct run *r) {
    struct config *c = r->config;
    if (!c->out && !(c->out = run_dir_make(c))) return -1;
    r->job.dir = c->out;
    return run_dir_take(c->out, c, r->force);
}

// The one message of an interruption. A terminal has shown ^C on the line.
static void say_interrupted(const struct run *r, int number) {
    const struct job *j = &r->job;
    int64_t step = metrics_last_step(j->dir);
    error_set_label("%s", "");
    if (isatty(STDERR_FILENO)) fputc('\n', stderr);
    const char *what = number == SIGINT ? "Ctrl-C" : "SIGTERM";
    bool kept = j->save_on_interrupt && !j->no_weights;
    const char *has = kept                         ? "its figures and weights"
                      : j->no_weights || j->no_bar ? "its figures"
                                                   : "its figures; --save-on-interrupt keeps the weights";
    if (step < 1)
        info("%s: ended before the first step was done", what);
    else
        info("%s: ended after step %lld of %lld; %s has %s", what, (long long)step,
             (long long)j->config->steps, j->dir, has);
}

// What the ranks left becomes summary.json and the closing table.
static int merge(const struct run *r, int number) {
    const struct job *j = &r->job;
    cJSON *summary = closing_merge(j->config, j->dir);
    if (!summary) return EXIT_RUN_FAILED;
    bool interrupted = summary_interrupted(summary);
    if (interrupted) say_interrupted(r, number);
    closing_show(j->config, j->dir, summary);
    cJSON_Delete(summary);
    run_state_end(j->dir, interrupted ? RUN_INTERRUPTED : RUN_COMPLETE, NULL);
    return !interrupted ? 0 : number ? 128 + number : EXIT_RUN_FAILED;
}

int run_end(struct run *r, int status, int number) {
    bool interrupted = number && status == 128 + number;
    if (!status) return merge(r, number);
    if (interrupted) say_interrupted(r, number);
    run_state_end(r->job.dir, interrupted ? RUN_INTERRUPTED : RUN_FAILED, error_last());
    return status;
}

int run_here(struct run *r, int (*ranks)(const struct job *j)) {
    if (run_begin(r)) return EXIT_USAGE;
    r->job.stop = stop_install();
    int status = stop_status(ranks(&r->job), r->job.stop);
    return run_end(r, status, *r->job.stop);
}
