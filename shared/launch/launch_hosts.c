#include "shared/launch/launch_hosts.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "shared/core/error.h"
#include "shared/core/output.h"
#include "shared/core/text.h"
#include "shared/core/version.h"
#include "shared/launch/launch.h"
#include "shared/launch/stage.h"
#include "shared/report/run_dir.h"

#define SSH_DEFAULT \
    "ssh -o BatchMode=yes -o ConnectTimeout=20 -o ServerAliveInterval=5 -o ServerAliveCountMax=3"
#define ANSWER_S  60   // of a host that is asked whether the run can begin there
#define COPY_S    600  // and that takes a copy of what it needs
#define GRACE_S   5.0
#define OUTPUT_MS 2000
// Linux gives away 32768 to 60999.
#define PORT_FIRST 20000
#define PORTS      10000

struct launch_over {
    const struct launch_hosts_options *o;
    const struct config *c;
    const char *ssh;
    char *program, *folder, *out;
    struct stage stage;  // with --stage: its program is the hosts'
    struct launcher *launcher;
    struct rank_pipes {
        int fd
            [3];  // to where its key and requests to end are read; to the seds that label what it prints. 0: there is none
        pid_t sed[3];
    } * pipes;       // of each rank
    uint64_t lives;  // which job those are of, a random number
    int port, life;
    char why[192];  // of the last death
};

// ---------------------------------------------------------------- words for a shell
static char *join(char *text, const char *word) {
    char *quoted = shell_word(word), *out = xasprintf("%s %s", text, quoted);
    free(quoted);
    free(text);
    return out;
}

// What this machine's shell is given, so that the host's runs the script, however its user's shell quotes.
static char *over_ssh(const struct launch_over *s, const struct host *h, char *script) {
    char *there = join(xstrdup("exec sh -c"), script), *all = join(xasprintf("%s", s->ssh), h->login);
    all = join(all, there);
    free(there);
    free(script);
    return all;
}

// "cd HERE", of a host that may lack the folder.
static char *to_folder(const struct launch_over *s, const char *otherwise) {
    char *words = join(xstrdup(s->stage.folder ? "mkdir -p" : "cd"), s->folder), *all;
    if (s->stage.folder) words = join(xasprintf("%s; cd", words), s->folder);
    all = xasprintf("%s %s", words, otherwise);
    free(words);
    return all;
}

// ---------------------------------------------------------------- before anything starts
// Asked of all hosts at once: whether ssh comes in, and program and folder are there, or with --stage can be. The last line
// of what it says counts.
static FILE *ask(const struct launch_over *s, int host) {
    char *script = to_folder(s, "|| exit 100;"), *whole;
    if (s->stage.folder) {
        char *take = stage_take(&s->stage, host);
        whole = xasprintf("{ %s; } || exit 101; %s", take, script);
        free(take);
        free(script);
        script = whole;
    }
    script = join(script, s->program);
    char *line = over_ssh(s, &s->o->hosts->host[host], xasprintf("%s --version", script));
    char *send = s->stage.folder ? stage_send(&s->stage) : NULL;
    whole =
        send ? xasprintf("%s | timeout --foreground %d %s 2>&1", send, COPY_S, line)  // of ask_apart's group
             : xasprintf("exec timeout %d %s 2>&1 </dev/null", ANSWER_S, line);
    free(script);
    free(line);
    free(send);
    fflush(NULL);
    FILE *answer = popen(whole, "re");
    free(whole);
    return answer;
}

static int check_answer(const struct launch_over *s, const struct host *h, FILE *answer) {
    char line[512], last[512] = "";
    while (fgets(line, sizeof line, answer)) {
        line[strcspn(line, "\r\n")] = 0;
        if (*line) snprintf(last, sizeof last, "%s", line);
    }
    int status = pclose(answer), code = WIFEXITED(status) ? WEXITSTATUS(status) : 255;
    if (!code && !strcmp(last, "starring " STARRING_VERSION)) return 0;
    if (!code)
        return fail("%s: %s there is \"%s\", here it is \"starring " STARRING_VERSION
                    "\": install the same, or "
                    "give --stage to copy this one",
                    h->login, s->program, last);
    if (code == 124)
        return fail("%s: ssh has not answered within %d s (%s)", h->login,
                    s->stage.folder ? COPY_S : ANSWER_S, s->ssh);
    if (code == 100)
        return fail(
            "%s: there is no folder %s (%s): start where the same path is on all hosts, or give --stage",
            h->login, s->folder, last);
    if (code == 101) return fail("%s: --stage: %s could not be made: %s", h->login, s->stage.folder, last);
    if (code == 255)
        return fail("%s: ssh could not come in: %s; see that `%s %s true` works from here without a password",
                    h->login, *last ? last : "it says nothing", getenv("STARRING_SSH") ? s->ssh : "ssh",
                    h->login);
    return fail("%s: %s does not run there (%s): install it with the same path, or give --stage to copy it",
                h->login, s->program, *last ? last : "it says nothing");
}

static int ask_all(const struct launch_over *s) {
    const struct hosts *h = s->o->hosts;
    FILE **answers = xcalloc((size_t)h->count, sizeof *answers);
    int rc = 0;
    for (int i = 0; i < h->count; i++)
        if (!(answers[i] = ask(s, i))) rc = fail("sh: %s", strerror(errno));
    for (int i = 0; i < h->count; i++)
        if (answers[i] && check_answer(s, &h->host[i], answers[i])) rc = -1;
    free(answers);
    return rc;
}

// With --stage: in a process group of its own, which Ctrl-C ends, so that the copies can be removed. 0, EXIT_USAGE, or
// 128 + the signal.
static int ask_apart(const struct launch_over *s) {
    sigset_t ends, before;
    int status = 0, number = 0;
    sigemptyset(&ends);
    sigaddset(&ends, SIGINT);
    sigaddset(&ends, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &ends, &before);
    fflush(NULL);
    pid_t pid = fork();
    if (!pid) {
        setpgid(0, 0);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        _exit(ask_all(s) ? EXIT_USAGE : 0);
    }
    if (pid > 0) setpgid(pid, pid);  // before either goes on
    while (pid > 0 && waitpid(pid, &status, WNOHANG) != pid) {
        int heard = sigtimedwait(&ends, NULL, &(struct timespec){.tv_nsec = 50000000});
        if (heard > 0) kill(-pid, SIGKILL);
        if (heard > 0) number = heard;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (number) info("%s: ended while --stage copied", number == SIGINT ? "Ctrl-C" : "SIGTERM");
    if (number) return 128 + number;
    if (pid < 0) fail("a process for --stage: %s", strerror(errno));
    return pid > 0 && WIFEXITED(status) ? WEXITSTATUS(status) : EXIT_USAGE;
}

// ---------------------------------------------------------------- one life
// Words of train that the configuration does not have.
static bool is_switch(const char *word) {
    return !strcmp(word, "--no-weights") || !strcmp(word, "--save-on-interrupt") || !strcmp(word, "--force");
}

// The rank as a script of its host. The shell stays, so that a rank which a signal has killed ends it with 128 + its number.
static char *script_of(const struct launch_over *s, const struct host *h, int rank) {
    const struct hosts *all = s->o->hosts;
    char *text = join(xstrdup("cd"), s->folder), count[16];
    char *more = xasprintf(
        "%s && RANK=%d WORLD_SIZE=%d LOCAL_RANK=%d LOCAL_WORLD_SIZE=%d MASTER_PORT=%d "
        "STARRING_STARTED_BY=ssh MASTER_ADDR=%s",
        text, rank, all->ranks, rank - h->first, h->slots,
        s->port + (s->port > 32767 ? 1 - s->life : s->life - 1), all->host[0].name);
    free(text);
    text = join(join(more, s->program), "train");
    snprintf(count, sizeof count, "%d", all->ranks);
    text = join(join(text, "--workers"), count);
    if (s->out) text = join(join(text, "--out"), s->out);  // before the given words, which may end in "--"
    if (s->stage.config) text = join(join(text, "-c"), s->stage.config);
    for (int i = 0; i < s->o->argc; i++)
        if (!s->stage.config || is_switch(s->o->argv[i])) text = join(text, s->o->argv[i]);
    more = xasprintf("%s; exit $?", text);
    free(text);
    return more;
}

static int send_first_words(const struct launch_over *s, int fd, const char *key) {
    int n = dprintf(fd, "key %s\n", key);
    if (n > 0 && s->lives)
        n = dprintf(fd, "life %d %016llx %s\n", s->life, (unsigned long long)s->lives, s->why);
    return n > 0 && dprintf(fd, "go\n") > 0 ? 0 : fail("a pipe to ssh: %s", strerror(errno));
}

// Behind what the seds still print, if that comes to an end: what a connection has left running may hold their pipes.
static void close_pipes(struct rank_pipes *p) {
    for (int i = 0; i < 3; i++) {
        if (p->fd[i]) close(p->fd[i]);
        for (int look = 0; p->sed[i] && look < OUTPUT_MS / 10 && !waitpid(p->sed[i], NULL, WNOHANG); look++)
            nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
    *p = (struct rank_pipes){0};
}

// Rank 0's standard output goes on as it is. Ctrl-C is the launcher's, which has blocked it here.
static int start_sed(struct rank_pipes *p, const struct host *h, int rank, int which) {
    char label[300] = "";
    int ends[2];
    if (rank || which == STDERR_FILENO)
        snprintf(label, sizeof label, "s/^/[%.255s:%d] /", h->name, rank - h->first);
    if (pipe2(ends, O_CLOEXEC)) return fail("pipe: %s", strerror(errno));
    p->fd[which] = ends[1];
    p->sed[which] = fork();
    if (!p->sed[which]) {
        dup2(ends[0], STDIN_FILENO);
        dup2(which, STDOUT_FILENO);
        execlp("sed", "sed", "-u", label, (char *)NULL);
        _exit(127);
    }
    close(ends[0]);
    return p->sed[which] < 0 ? fail("sed: %s; " ERROR_RAISE_THREADS, strerror(errno)) : 0;
}

// Ranks go on where another dies, and start their own roles again; rank 0 stands for the run.
static bool elastic(const struct config *c) { return c->recovery.elastic != NULL; }

static int start_one(struct launch_over *s, const struct host *h, int rank, const char *key) {
    struct rank_pipes *p = &s->pipes[rank];
    int in[2], rc = -1;
    close_pipes(p);
    if (pipe2(in, O_CLOEXEC)) return fail("pipe: %s", strerror(errno));
    p->fd[STDIN_FILENO] = in[1];
    char *line = over_ssh(s, h, script_of(s, h, rank)), *whole = xasprintf("exec %s", line);
    char *argv[] = {(char *)"sh", (char *)"-c", whole, NULL};
    if (!start_sed(p, h, rank, STDOUT_FILENO) && !start_sed(p, h, rank, STDERR_FILENO) &&
        !send_first_words(s, in[1], key))
        rc = launcher_start(s->launcher, &(struct launch_child){.role = "rank",
                                                                .rank = rank,
                                                                .program = "/bin/sh",
                                                                .argv = argv,
                                                                .host = h->name,
                                                                .input_fd = in[0],
                                                                .output_fd = p->fd[STDOUT_FILENO],
                                                                .error_fd = p->fd[STDERR_FILENO],
                                                                .signal_fd = in[1],
                                                                .orderly = true,
                                                                .expendable = rank > 0 && elastic(s->c)});
    close(in[0]);
    free(line);
    free(whole);
    return rc;
}

static int start_all(struct launch_over *s) {
    unsigned char random[32];
    char key[2 * sizeof random + 1];
    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random) return fail("no random number");
    for (size_t i = 0; i < sizeof random; i++) snprintf(key + 2 * i, 3, "%02x", random[i]);
    s->life++;
    const struct hosts *h = s->o->hosts;
    for (int i = 0; i < h->count; i++)
        for (int k = 0; k < h->host[i].slots; k++)
            if (start_one(s, &h->host[i], h->host[i].first + k, key)) return -1;
    return 0;
}

static int begin_anew(void *ctx, const char *why) {
    struct launch_over *s = ctx;
    snprintf(s->why, sizeof s->why, "%s", why);
    return start_all(s);
}

// ---------------------------------------------------------------- all of them
// 0, or -1 after logging.
static int prepare(struct launch_over *s) {
    const struct hosts *h = s->o->hosts;
    const char *first = h->host[0].name, *ssh = getenv("STARRING_SSH"), *port = getenv("MASTER_PORT");
    uint16_t random;
    s->ssh = ssh && *ssh ? ssh : SSH_DEFAULT;
    if (h->count > 1 && (!strcmp(first, "localhost") || !strncmp(first, "127.", 4) || !strcmp(first, "::1")))
        return fail("--hosts: the other hosts do not reach the first one as %s: give its name", first);
    if (!(s->program = launch_self())) return -1;
    if (!(s->folder = getcwd(NULL, 0)))
        return fail("the folder that this is started in: %s", strerror(errno));
    if (getrandom(&random, sizeof random, 0) != (ssize_t)sizeof random) return fail("no random number");
    if (s->c->recovery.restart && !elastic(s->c) &&
        getrandom(&s->lives, sizeof s->lives, 0) != (ssize_t)sizeof s->lives)
        return fail("no random number");
    s->port = PORT_FIRST + random % PORTS;
    const char *end = port ? text_count(port, &s->port) : "";
    if (!end || *end || s->port < 1 || s->port > 65535) return fail("MASTER_PORT=%s: not a port", port);
    s->out = s->c->out ? xstrdup(s->c->out) : run_dir_name(s->c);
    if (s->o->stage) {
        int rc = stage_begin(&s->stage, s->o->run->config, s->program);
        free(s->program);
        s->program = s->stage.program ? xstrdup(s->stage.program) : NULL;
        if (rc) return -1;
    }
    return 0;
}

// Of all hosts at once.
static void remove_stage(const struct launch_over *s) {
    const struct hosts *h = s->o->hosts;
    FILE **gone = xcalloc((size_t)h->count, sizeof *gone);
    for (int i = 0; i < h->count; i++) {
        char *line = over_ssh(s, &h->host[i], stage_remove(&s->stage));
        char *whole = xasprintf("exec timeout %d %s >/dev/null 2>&1 </dev/null", ANSWER_S, line);
        gone[i] = popen(whole, "re");
        free(line);
        free(whole);
    }
    for (int i = 0; i < h->count; i++)
        if (!gone[i] || pclose(gone[i]))
            warn("--stage: %s: %s could not be removed", h->host[i].login, s->stage.folder);
    free(gone);
}

int launch_hosts(const struct launch_hosts_options *o) {
    struct launch_over s = {.o = o, .c = o->run->config};
    struct launch_options l = {
        .grace_s = GRACE_S,
        .together = !elastic(s.c),
        .restarts = {.count = elastic(s.c) ? 0 : s.c->recovery.restart, .anew = begin_anew},
        .ctx = &s};
    int status = EXIT_USAGE;
    s.pipes = xcalloc((size_t)o->hosts->ranks, sizeof *s.pipes);
    if (!prepare(&s)) status = o->stage ? ask_apart(&s) : ask_all(&s) ? EXIT_USAGE : 0;
    if (!status) {
        s.launcher = launcher_create(&l);
        output_apart_begin();  // a thread that takes no signals, as all of them from here on
        if (start_all(&s)) launcher_end_all(s.launcher);
        status = launcher_wait(s.launcher);
    }
    launcher_destroy(&s.launcher);
    if (s.stage.folder && s.stage.config) remove_stage(&s);
    stage_end(&s.stage);
    output_apart_end();
    for (int i = 0; i < o->hosts->ranks; i++) close_pipes(&s.pipes[i]);
    free(s.pipes);
    free(s.program);
    free(s.folder);
    free(s.out);
    return status;
}
