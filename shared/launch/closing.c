#include "shared/launch/closing.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/core/disk.h"
#include "shared/core/error.h"
#include "shared/core/json.h"
#include "shared/core/text.h"
#include "shared/core/topology_row.h"
#include "shared/device/device_choice.h"
#include "shared/launch/stop.h"
#include "shared/report/span_files.h"
#include "shared/report/summary.h"
#include "shared/state/staleness.h"
#include "shared/time/stall_report.h"
#include "shared/train/session.h"

struct cJSON *closing_merge(const struct config *c, const char *dir) {
    struct cJSON *missing = cJSON_CreateArray(), *reports = summary_reports(c, dir, missing);
    struct stall_reports *m = stall_reports_read(reports);
    // If one file has an error, the others are merged all the same.
    bool whole = trace_merge(c, dir, m) == 0;
    stall_reports_free(&m);
    cJSON_Delete(reports);
    cJSON_Delete(missing);
    if (c->ps.log_updates && staleness_merge_logs(dir, c->ps.servers * c->ps.threads)) whole = false;
    cJSON *summary = summary_merge(c->topologies, dir);
    if (summary) summary_warn_missing(summary, dir);
    if (whole) return summary;
    cJSON_Delete(summary);
    return NULL;
}

int closing_unkept(const char *dir, const struct cJSON *summary) {
    if (!summary_unkept(summary)) return 0;
    return fail(
        "%s/checkpoints: no checkpoint could be kept (%s): all steps are done, and no run can resume from them",
        dir, json_text(json_item(summary, "checkpoints"), "why", "there was no memory for them"));
}

// ---------------------------------------------------------------- waiting snapshots
enum evaluated evaluate_dir(const struct evaluate_dir_options *o) {
    if (!evaluate_waiting(o->dir)) return EVALUATE_DONE;
    char *path = xasprintf("%s/config.json", o->dir);
    struct config *c = o->job ? NULL : config_load(o->topologies, path, NULL, 0);
    struct job own = {0};
    const struct job *j = o->job;
    if (c) device_resolve(c);
    if (c && device_backend(c) && !job_open(&own, c, false)) j = &own;
    enum evaluated rc = EVALUATE_FAILED;
    if (j)
        rc = evaluate_run(&(struct evaluate_options){.config = j->config,
                                                     .spec = &j->spec,
                                                     .data = j->data,
                                                     .dir = o->dir,
                                                     .keep = o->keep || j->config->keep_snapshots,
                                                     .stop = o->stop,
                                                     .output = o->say});
    if (rc == EVALUATE_INTERRUPTED) evaluate_report_waiting(o->dir, "evaluation interrupted: ");
    job_close(&own);
    config_destroy(&c);
    free(path);
    return rc;
}

int closing_show(const struct config *c, const struct evaluate_dir_options *o, struct cJSON **summary) {
    int status = 0;
    if (!(*summary && summary_interrupted(*summary)) && evaluate_waiting(o->dir)) {
        struct evaluate_dir_options with = *o;
        with.topologies = c->topologies;
        with.say = c->quiet ? NULL : c->json ? stderr : stdout;
        if (!with.stop) with.stop = stop_install("the batch in hand");
        enum evaluated rc = evaluate_dir(&with);
        status = rc == EVALUATE_FAILED ? EXIT_RUN_FAILED : rc == EVALUATE_INTERRUPTED ? 128 + *with.stop : 0;
        cJSON_Delete(*summary);
        *summary = NULL;
    }
    if (!*summary && !(*summary = summary_merge(c->topologies, o->dir))) return EXIT_RUN_FAILED;
    if (c->json)
        json_print(stdout, *summary);
    else if (!c->quiet)
        (c->full ? summary_print : summary_print_brief)(stdout, o->dir, *summary);
    return status;
}

// ---------------------------------------------------------------- the last rank to leave
static bool has_report(const struct closing_rank *r, const char *role, int rank) {
    char job[REPORT_JOB_MAX];
    char *name = xasprintf("ranks/%s-%d.json", role, rank), *text = run_file_read(r->dir, name, true);
    cJSON *report = text ? json_parse(text, strlen(text)) : NULL;
    bool there = !strcmp(json_text(report, "job", ""), report_job_name(r->job, job));
    cJSON_Delete(report);
    free(text);
    free(name);
    return there;
}

// Returns the first rank whose report is missing, "server 0" (malloc'd), or NULL if all are there.
static char *missing_report(const struct closing_rank *r) {
    for (const struct topology_role *o = r->config->row->roles; o->name; o++)
        for (int i = 0; i < config_ranks(r->config, o->name); i++)
            if (!has_report(r, o->name, i)) return xasprintf("%s %d", o->name, i);
    return NULL;
}

// Decides which rank prints the table. Returns 1: this one; 0: another rank was first; -1 after logging.
static int claim(const struct closing_rank *r) {
    char job[REPORT_JOB_MAX];
    char *path = xasprintf("%s/ranks/last-%s", r->dir, report_job_name(r->job, job));
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666), rc = fd >= 0;
    if (fd >= 0 && (dprintf(fd, "%s %d\n", r->role, r->rank) < 0 || close(fd))) rc = -1;
    if (fd < 0 && errno != EEXIST) rc = -1;
    if (rc < 0) fail("%s: cannot write: %s", path, strerror(errno));
    free(path);
    return rc;
}

enum closing closing_leave(const struct closing_rank *r) {
    const struct config *c = r->config;
    char *missing = missing_report(r);
    int mine = missing ? 0 : claim(r);
    if (mine < 0) return CLOSING_FAILED;
    char program[PROGRAM_WORD], *word = shell_word(r->dir);
    if (!mine && !c->quiet)
        info(
            "its report is %s/ranks/%s-%d.json; the last rank to leave prints the table%s%s. Machines that share "
            "no %s print none: copy their ranks/ into worker 0's, then %s summary %s",
            r->dir, r->role, r->rank, missing ? ", which still needs the report of " : "",
            missing ? missing : "", r->dir, program_word(program), word);
    free(word);
    free(missing);
    if (!mine) return CLOSING_LEFT;
    cJSON *summary = closing_merge(c, r->dir);
    if (!summary) return CLOSING_FAILED;
    // The run is complete, even if the evaluation fails.
    closing_show(c, &(struct evaluate_dir_options){.dir = r->dir, .stop = r->stop}, &summary);
    int rc = !summary || closing_unkept(r->dir, summary);
    cJSON_Delete(summary);
    return rc ? CLOSING_FAILED : CLOSING_LAST;
}
