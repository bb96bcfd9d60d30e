#include "shared/launch/run.h"

#include <cjson/cJSON.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "shared/core/error.h"
#include "shared/core/json.h"
#include "shared/fabric/rendezvous.h"
#include "shared/infer/evaluate.h"
#include "shared/launch/closing.h"
#include "shared/launch/stop.h"
#include "shared/report/history.h"
#include "shared/report/metrics.h"
#include "shared/report/run_dir.h"
#include "shared/report/run_state.h"
#include "shared/report/summary.h"
#include "shared/state/checkpoint.h"
#include "shared/train/job.h"

#define ENDLESS_S 1e9

// A run that resumes its own checkpoint keeps its history.
static void begin_history(const struct run *r) {
    const char *dir = r->config->out;
    bool goes_on = resume_is_inside(r->job.resume, dir);
    int64_t done = metrics_last_step(dir), from = r->job.resume_step;
    if (!goes_on) history_remove(dir);
    struct history_row first = {.kind = HISTORY_START,
                                .step = from + 1,
                                .start = history_last_start(dir).start + 1,
                                .epoch = 1,
                                .job = r->lives,
                                .checkpoint = r->job.resume,
                                .counted = goes_on,
                                .lost = done > from ? done - from : 0};
    if (r->lives) history_add(dir, &first);
}

int run_begin(struct run *r) {
    struct config *c = r->config;
    if (!c->out && !(c->out = run_dir_make(c))) return -1;
    r->job.dir = c->out;
    if (resume_take_dir(c, r->job.resume, c->out, r->force)) return -1;
    // Checks again: until now an earlier start of the run may have been writing and removing checkpoints at its end.
    if (r->job.resume_found && job_resume(&r->job, false)) return -1;
    begin_history(r);
    error_clear();
    return 0;
}

void run_say_lost(const struct job *j, bool failed) {
    const struct recovery_config *c = &j->config->recovery;
    long long kept = checkpoint_latest_step(j->dir), from = kept < 0 ? j->resume_step_of_run : kept,
              lost = metrics_last_step(j->dir) - from;
    const char *steps = lost == 1 ? "step" : "steps", *are = lost == 1 ? "is" : "are",
               *by_itself = failed && !c->restart
                                ? "; with --restart N a run restarts by itself when a process is killed"
                                : "";
    if (lost < 1) return;
    if (kept < 0)
        warn("%s has no checkpoint: the %lld %s that %s done %s lost%s%s", j->dir, lost, steps,
             lost == 1 ? "was" : "were", are,
             c->checkpoint_every ? "" : ": --checkpoint-every K keeps the state of every K-th", by_itself);
    else
        warn(
            "the newest checkpoint of %s is step-%lld: the %lld %s after it %s lost: --resume latest continues from there%s",
            j->dir, kept, lost, steps, are, by_itself);
}

// Prints the one message of an interruption. A terminal has printed ^C on the line. summary: all ranks have ended in
// order; else NULL.
static void say_interrupted(const struct run *r, int number, const cJSON *summary) {
    const struct job *j = &r->job;
    bool whole = summary != NULL;
    int64_t lines = metrics_last_step(j->dir), step = whole ? (int64_t)json_number(summary, "steps") : lines;
    error_set_label("%s", "");
    if (isatty(STDERR_FILENO)) fputc('\n', stderr);
    const char *what = number == SIGINT ? "Ctrl-C" : "SIGTERM";
    bool kept = whole && j->save_on_interrupt && !j->no_weights;
    const char *has = kept     ? "its figures and weights"
                      : !whole ? "its steps, and no summary, as not all ranks could end in order"
                      : j->no_weights || j->no_bar ? "its figures"
                                                   : "its figures; --save-on-interrupt keeps the weights";
    const char *died = whole ? "" : error_last();  // why the end was not orderly: a process has died
    if (step < 1)
        info("%s: ended before the first step was done%s%s", what, *died ? ": " : "", died);
    else
        info("%s: ended after step %lld of %lld; %s has %s%s%s", what, (long long)step,
             (long long)j->config->steps, j->dir, has, *died ? ": " : "", died);
    if (j->config->recovery.checkpoint_every > 0) run_say_lost(j, false);
    evaluate_report_waiting(j->dir, "");
}

// Merges the ranks' reports into summary.json and the closing table.
static int merge(const struct run *r, int number) {
    const struct job *j = &r->job;
    cJSON *summary = closing_merge(j->config, j->dir);
    if (!summary) return EXIT_RUN_FAILED;
    bool interrupted = summary_interrupted(summary);
    // A participant that was late for an abandoned checkpoint may have created its directory again. No rank writes any
    // more.
    if (j->config->recovery.checkpoint_every > 0) checkpoint_sweep(j->dir, CHECKPOINT_ALL, 0);
    if (interrupted) say_interrupted(r, number, summary);
    run_state_end(j->dir, interrupted ? RUN_INTERRUPTED : RUN_COMPLETE, NULL);
    int status = closing_show(j->config, &(struct evaluate_dir_options){.dir = j->dir, .job = j}, &summary);
    if (summary && closing_unkept(j->dir, summary) && !status) status = EXIT_RUN_FAILED;
    cJSON_Delete(summary);
    return !interrupted ? status : number ? 128 + number : EXIT_RUN_FAILED;
}

bool run_is_over(const struct run *r) {
    const struct config *c = r->config;
    struct run_state s;
    if (!resume_is_inside(r->job.resume, c->out) || r->job.resume_step_of_run < c->steps) return false;
    run_state_read(c->out, &s);
    return s.phase == RUN_COMPLETE;
}

int run_show(struct run *r) {
    const struct config *c = r->config;
    cJSON *summary = NULL;
    if (r->env.kind != RANK_ENV_NONE && r->env.rank > 0) return 0;
    r->job.dir = c->out;
    info("%s: all %lld steps are done, so there is nothing left to train", c->out, (long long)c->steps);
    int status = closing_show(c, &(struct evaluate_dir_options){.dir = c->out, .job = &r->job}, &summary);
    cJSON_Delete(summary);
    return status;
}

int run_end(struct run *r, int status, int number) {
    bool interrupted = number && status == 128 + number;
    if (!status) return merge(r, number);
    if (interrupted) say_interrupted(r, number, NULL);
    if (status == EXIT_RUN_FAILED) run_say_lost(&r->job, true);
    run_state_end(r->job.dir, interrupted ? RUN_INTERRUPTED : RUN_FAILED, error_last());
    return status;
}

// ---------------------------------------------------------------- a launcher and its children
// No timeouts here: the launcher itself sees that a child has stopped or died, and the kernel ends the children with
// their launcher. A child that joins late is waited for.
struct rendezvous *run_meeting(const struct config *c, int member, int count, int port) {
    return rendezvous_open(
        &(struct rendezvous_options){.host = "127.0.0.1",
                                     .port = port,
                                     .rank = member,
                                     .size = 1,
                                     .roles = {{"rank", count}},
                                     .member_0 = "the launcher",
                                     .replace = true,
                                     .deadline_s = ENDLESS_S,
                                     .silent_s = ENDLESS_S,
                                     .beat_s = rendezvous_heartbeat_s((double)c->deadline_ms * 1e-3),
                                     .no_wait = member > 0});
}

int run_join_launcher(struct run *r) {
    int port = rank_env_meeting();
    if (port) r->meet = run_meeting(r->config, 1 + r->env.rank, r->env.size, port);
    return r->meet || !port ? 0 : -1;
}

// A short run may end before its launcher has admitted the child.
void run_leave_launcher(void *run, const char *failed) {
    struct run *r = run;
    char word[MEET_NAME_MAX];
    bool in = r->meet && !rendezvous_end_reason(r->meet) && !rendezvous_wait(r->meet, NULL);
    snprintf(word, sizeof word, RUN_WHY, r->life);
    if (in && failed) rendezvous_send(r->meet, word, failed, strlen(failed));
    rendezvous_close(&r->meet);
}

int run_here(struct run *r, int (*ranks)(void *ctx, const struct job *j), void *ctx) {
    if (r->life) {
        r->job.dir = r->config->out;
        r->job.stop = stop_install_role(true);
        int status = run_join_launcher(r) ? EXIT_RUN_FAILED : stop_status(ranks(ctx, &r->job), r->job.stop);
        run_leave_launcher(r, status ? error_last() : NULL);
        return status;
    }
    if (run_begin(r)) return EXIT_USAGE;
    r->job.stop = stop_install("this step");
    int status = stop_status(ranks(ctx, &r->job), r->job.stop);
    return run_end(r, status, *r->job.stop);
}
