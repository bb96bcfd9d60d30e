// `starring scheduler`, `server` and `worker`: the star's roles as separate processes. train starts them
// (ps/launch_star.h), or a user does by hand, on one machine or on many.
//
// A role started by hand compares its memory, prints which ranks it waits for and, with --out DIR, leaves its report
// in DIR/ranks. Worker 0 takes DIR for the run (config.json, state.json), and the last worker or server to
// leave prints the table (shared/launch/closing.h). If train has started the role, train does all of that.
#include "ps/star.h"

#include <limits.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ps/job/ps.h"
#include "ps/job/security.h"
#include "ps/net/member.h"
#include "ps/net/net.h"
#include "shared/command/commands.h"
#include "shared/core/background.h"
#include "shared/core/error.h"
#include "shared/device/device_choice.h"
#include "shared/fabric/address.h"
#include "shared/fabric/job_key.h"
#include "shared/launch/closing.h"
#include "shared/launch/local_steps.h"
#include "shared/launch/run.h"
#include "shared/launch/stop.h"
#include "shared/predict/memory_check.h"
#include "shared/report/run_dir.h"
#include "shared/report/run_state.h"
#include "shared/report/summary.h"
#include "shared/state/checkpoint.h"
#include "shared/time/stall_report.h"
#include "shared/train/session.h"

struct role {
    const struct cli_command *command;
    const struct cli_args *args;
    struct job job;
    struct config inner;  // the star's own configuration: with local steps one of its steps is a round
    struct ps_role_options ps;
    struct job_key key;
    struct session_end end;                   // job: known once the scheduler has answered
    struct endpoint meeting;                  // --bind's or --scheduler's
    char rounds_address[FABRIC_ADDRESS_MAX];  // the scheduler's address for rounds
    long rank, ranks, local_rank;             // ranks: size of the rendezvous
    bool by_hand;
    bool unusable;  // model, data or directory cannot be used; the reason was logged
};

static bool is(const struct role *r, const struct cli_command *command) { return r->command == command; }

// ---------------------------------------------------------------- before the run
// --advertise is a whole address, or a host: then the port is the bound one.
static int read_advertised(struct role *r) {
    const char *given = is(r, &command_server) ? cli_get(r->args, "advertise") : NULL;
    if (!given) return 0;
    char *whole = strncmp(given, "tcp://", 6) ? xasprintf("tcp://%s:*", given) : xstrdup(given);
    int rc = endpoint_read("--advertise", whole, &r->ps.advertise);
    free(whole);
    return rc;
}

// Reads the role's rank, and the scheduler's address.
static int read_identity(struct role *r, struct config *c) {
    const char *name = r->command->name;
    bool scheduler = is(r, &command_scheduler);
    int most = is(r, &command_worker) ? c->workers : c->ps.servers;
    r->rank = -1;
    if (c->row != &topology_star) {
        char *names = config_variants(&topology_star, " or ");
        fail("starring %s: --topology is %s; only a star has this role: use %s", name, c->topology, names);
        free(names);
        return -1;
    }
    if (config_check_launch(c)) return -1;
    r->ps.scheduler = cli_get(r->args, "scheduler");
    if (!scheduler && !r->ps.scheduler)
        return fail("starring %s needs --scheduler tcp://HOST:PORT, the address the scheduler listens on",
                    name);
    if (!scheduler && !cli_get(r->args, "rank"))
        return fail(
            "starring %s needs --rank R, its number in the job: 0 to %d, each given once (and again to replace a role that has "
            "died)",
            name, most - 1);
    if (!scheduler && cli_integer(r->args, "rank", 0, most - 1, -1, &r->rank)) return -1;
    if (!scheduler && cli_integer(r->args, "ranks", 1, INT_MAX, 1, &r->ranks)) return -1;
    if (is(r, &command_worker) && cli_integer(r->args, "local-rank", 0, INT_MAX, -1, &r->local_rank))
        return -1;
    if (scheduler)
        r->ps.scheduler = cli_get(r->args, "bind") ? cli_get(r->args, "bind") : "tcp://127.0.0.1:*";
    if (read_advertised(r)) return -1;
    if (endpoint_read(scheduler ? "--bind" : "--scheduler", r->ps.scheduler, &r->meeting)) return -1;
    // The header and the report state who may join, which follows from the configuration, so the option's address is
    // copied there.
    bool local = is(r, &command_server) || address_is_loopback(r->meeting.host);
    if (!local && ps_security_of(c) == PS_LOOPBACK) {
        char bind[FABRIC_ADDRESS_MAX];
        endpoint_text(r->meeting.host, 0, bind, sizeof bind);
        free(c->ps.bind);
        c->ps.bind = xstrdup(bind);
    }
    int has_key = job_key_open(c->security.insecure, &r->key);
    if (has_key > 0) r->ps.key = &r->key;
    return has_key < 0 ? -1 : 0;
}

// Prepares the role's files in --out DIR. Worker 0 takes DIR once all roles are present and before any has written;
// whether it may is checked now. The scheduler leaves its trace there, if any.
static int open_dir(const struct role *r) {
    const char *dir = r->ps.dir;
    const struct config *c = r->job.config;
    if (!dir) return 0;
    if (is(r, &command_scheduler)) return run_dir_join(dir);
    // A job that may resume continues in its own directory, so only a first start checks the directory.
    bool first = !c->recovery.restart && !c->recovery.resume && checkpoint_latest_step(dir) < 0;
    if (first && r->by_hand && is(r, &command_worker) && r->rank == 0 && run_dir_check(dir, r->job.force))
        return -1;
    return run_dir_join(dir);
}

// Reads model and data, and prepares the run's directory.
static int read_files(void *ctx) {
    struct role *r = ctx;
    const struct config *c = r->job.config;
    bool scheduler = is(r, &command_scheduler);
    struct memory_ranks part = {r->command->name, (int)r->rank, 1, .processes = true};
    error_quiet(r->by_hand ? QUIET_NOT : QUIET_WARNINGS);
    int opened = job_open(&r->job, c, !is(r, &command_worker));
    error_quiet(QUIET_NOT);
    r->unusable = opened || (r->by_hand && !scheduler && memory_check_run(&r->job, &part));
    // A missing --out is reported before hours of training, not after.
    if (!r->unusable && r->by_hand && !c->out && !scheduler && !c->quiet)
        info(
            "no --out: this %s writes no report, and without the reports of all workers and servers the run gets no table "
            "and no summary.json; give each of them the same --out DIR",
            r->command->name);
    r->unusable = r->unusable || open_dir(r);
    r->ps.layout = r->job.layout;
    r->ps.spec = &r->job.spec;
    r->ps.data = r->job.data;
    return r->unusable ? -1 : 0;
}

static int prepare(struct role *r, struct config *c) {
    bool worker = is(r, &command_worker), scheduler = is(r, &command_scheduler);
    if (read_identity(r, c)) return -1;
    r->by_hand = !cli_get(r->args, "launched");
    r->job.no_weights = worker && cli_get(r->args, "no-weights");
    r->job.save_on_interrupt = worker && cli_get(r->args, "save-on-interrupt");
    r->job.force = worker && cli_get(r->args, "force");
    r->job.owns_dir = worker && r->by_hand;
    r->job.no_metrics = c->quiet;
    r->job.steps_to_stderr = c->json;
    r->inner = local_steps_inner(c);
    r->ps.config = &r->inner;
    r->ps.dir = !scheduler || ps_scheduler_has_files(c) ? c->out : NULL;
    r->job.dir = scheduler ? NULL : c->out;
    r->ps.rank = (int)r->rank;
    r->ps.launcher_logs = !r->by_hand;
    r->ps.log_waiting = r->by_hand && !c->quiet;
    return 0;
}

// ---------------------------------------------------------------- each role's run
// The rendezvous is at --bind's name, interface or number; for rounds the scheduler listens at any port of the same
// address.
static int open_rendezvous(struct role *r) {
    struct endpoint at = r->meeting;
    char own[ADDRESS_MAX], text[FABRIC_ADDRESS_MAX];
    int rc = if_nametoindex(at.host) ? address_own(at.host, "127.0.0.1", own) : address_resolve(at.host, own);
    if (rc) return rc < 0 ? -1 : fail("%s: no name service answers", r->ps.scheduler);
    snprintf(at.host, sizeof at.host, "%s", own);
    if (!(r->ps.meet = member_open(r->ps.config, &at, !r->ps.key))) return -1;
    endpoint_text(r->meeting.host, rendezvous_port(r->ps.meet), text, sizeof text);
    info("listening on %s", text);
    if (!r->ps.key) warn("security %s", ps_security_words(r->job.config));
    endpoint_text(own, 0, r->rounds_address, sizeof r->rounds_address);
    r->ps.scheduler = r->rounds_address;
    return 0;
}

static int run_scheduler(struct role *r) {
    r->ps.read = read_files;
    r->ps.ctx = r;
    return open_rendezvous(r) ? -1 : ps_scheduler_run(&r->ps);
}

static int run_server(struct role *r) {
    struct rank_report report = {.rank = r->ps.rank};
    if (ps_server_run(&r->ps, &report)) return -1;
    r->end = (struct session_end){.rank = report.rank, .job = report.job};
    int rc = r->job.dir ? summary_write_rank(r->job.dir, &report, NULL) : 0;
    stall_report_free(&report.stall_report);
    return rc;
}

static struct topology *create_worker(void *ctx, struct device *dev, struct stream *compute) {
    const struct role *r = ctx;
    const char *by = cli_get(r->args, "started-by");
    struct topology *t =
        ps_worker_create(&(struct ps_worker_options){.role = r->ps, .dev = dev, .compute = compute});
    if (t && by) t->launch = by;
    return local_steps_around(r->job.config, t);
}

static int run_worker(struct role *r) {
    int local_rank = r->local_rank >= 0 ? (int)r->local_rank : r->ps.rank;
    return session_run(
        &(struct session_options){
            .job = &r->job, .rank = r->ps.rank, .local_rank = local_rank, .create = create_worker, .ctx = r},
        &r->end);
}

// Enters the rendezvous first, so that the process counts as alive while it opens its device and reads files.
static int enter_and_read(struct role *r, struct config *c) {
    bool computes = is(r, &command_worker), open = cli_get(r->args, "open") || !r->ps.key;
    r->ps.meet = member_enter(&r->ps, computes ? PS_WORKER : PS_SERVER, (int)r->ranks, open);
    if (!r->ps.meet) return -1;
    error_quiet(r->by_hand ? QUIET_NOT : QUIET_WARNINGS);
    if (computes) device_resolve(c);
    error_quiet(QUIET_NOT);
    r->unusable = computes && !device_backend(c);
    return r->unusable || read_files(r) ? -1 : 0;
}

// Leaves the rendezvous. A role that its launcher has ended does not announce this as a member: the launcher reports it
// to the scheduler.
static void leave_rendezvous(struct role *r, int rc) {
    if (rc && ps_stopped(r->ps.stop) && rank_env_supervised()) return;
    int quiet = error_quiet(QUIET_ALL);  // the reason was logged when the job ended without this role
    char *why = xstrdup(error_last());
    rendezvous_close(&r->ps.meet);
    error_take_over(why);
    error_quiet(quiet);
    free(why);
}

static int run_role(struct role *r, struct config *c) {
    bool scheduler = is(r, &command_scheduler);
    error_set_label(scheduler ? "%s" : "%s %ld", r->command->name, r->rank);
    int rc = scheduler ? 0 : enter_and_read(r, c);
    r->ps.stop = r->job.stop = stop_install_role(is(r, &command_worker));
    if (!rc) rc = scheduler ? run_scheduler(r) : is(r, &command_server) ? run_server(r) : run_worker(r);
    leave_rendezvous(r, rc);
    return rc;
}

// ---------------------------------------------------------------- after the run
// Returns the role's exit status, and records the run's end in its directory if the role is worker 0 started by hand.
static int leave(struct role *r, int status) {
    bool left = r->end.interrupted && !status;
    enum run_phase phase = left || status > 128 ? RUN_INTERRUPTED : status ? RUN_FAILED : RUN_COMPLETE;
    if (r->job.dir) run_state_end(r->job.dir, phase, status ? error_last() : NULL);
    // The role's report is written. If this is the last role of the job, it prints the table.
    const struct closing_rank closing = {.config = r->job.config,
                                         .dir = r->job.dir,
                                         .role = r->command->name,
                                         .rank = r->end.rank,
                                         .job = r->end.job,
                                         .stop = r->job.stop};
    if (!status && r->job.dir && r->by_hand && closing_leave(&closing) == CLOSING_FAILED)
        status = EXIT_RUN_FAILED;
    // The last role to leave has logged the job's end; worker 0 reports it for the run, whichever role is the last.
    bool reports = r->by_hand && is(r, &command_worker) && r->end.rank == 0 && r->job.dir;
    if (reports && status == EXIT_RUN_FAILED) run_say_lost(&r->job, true);
    if (!status && reports && phase == RUN_COMPLETE && r->job.config->recovery.checkpoint_every > 0 &&
        checkpoint_latest_step(r->job.dir) < 0) {
        fail(
            "%s/checkpoints: no checkpoint could be kept: all steps are done, and no run can resume from them",
            r->job.dir);
        status = EXIT_RUN_FAILED;
    }
    if (!left || status || rank_env_supervised()) return status;
    info("interrupted: this worker ended after the current step, as did all others");
    return stop_status(-1, r->job.stop);
}

static int role_main(const struct topology_table *t, const struct cli_command *command, int argc,
                     char **argv) {
    struct cli_args args;
    enum cli_outcome outcome = cli_parse(command, t, argc, argv, &args);
    int status = outcome == CLI_HELP_SHOWN ? 0 : EXIT_USAGE;
    struct config *c = NULL;
    output_thread_begin();
    // A launched role prints no warnings: its launcher has printed them.
    error_quiet(outcome == CLI_RUN && cli_get(&args, "launched") ? QUIET_WARNINGS : QUIET_NOT);
    if (outcome == CLI_RUN) c = config_load(t, cli_get(&args, "config"), args.overrides, args.override_count);
    error_quiet(QUIET_NOT);
    struct role r = {.command = command, .args = &args, .job.config = c};
    if (c && !prepare(&r, c)) {
        int rc = run_role(&r, c);
        status = r.unusable ? EXIT_USAGE : leave(&r, stop_status(rc, r.job.stop));
    }
    job_key_forget(&r.key);
    job_close(&r.job);
    config_destroy(&c);
    cli_args_free(&args);
    output_thread_end();
    return status;
}

int role_scheduler(const struct topology_table *t, int argc, char **argv) {
    return role_main(t, &command_scheduler, argc, argv);
}
int role_server(const struct topology_table *t, int argc, char **argv) {
    return role_main(t, &command_server, argc, argv);
}
int role_worker(const struct topology_table *t, int argc, char **argv) {
    return role_main(t, &command_worker, argc, argv);
}
