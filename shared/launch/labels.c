#include "shared/launch/labels.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/core/error.h"

struct labels {
    pthread_mutex_t mutex;  // guards count
    pthread_cond_t fewer;
    int count;  // pipes whose writers have not left
};

struct passing {
    struct labels *all;
    FILE *in;
    char *label;
    bool to_error;
};

static void *pass_on(void *arg) {
    struct passing *p = arg;
    char *line = NULL;
    size_t room = 0;
    ssize_t n;
    while ((n = getline(&line, &room, p->in)) > 0) {
        char *whole = xasprintf("%s%s%s", p->label, line, line[n - 1] == '\n' || !*p->label ? "" : "\n");
        if (p->to_error) {
            error_write(whole, strlen(whole));
        } else {
            fputs(whole, stdout);
            fflush(stdout);
        }
        free(whole);
    }
    pthread_mutex_lock(&p->all->mutex);
    p->all->count--;
    pthread_cond_signal(&p->all->fewer);
    pthread_mutex_unlock(&p->all->mutex);
    fclose(p->in);
    free(line);
    free(p->label);
    free(p);
    return NULL;
}

struct labels *labels_create(void) {
    struct labels *l = xcalloc(1, sizeof *l);
    pthread_mutex_init(&l->mutex, NULL);
    cond_init(&l->fewer);
    return l;
}

int labels_pipe(struct labels *l, const char *label, bool to_error) {
    int ends[2];
    pthread_t thread;
    sigset_t all, before;
    if (pipe2(ends, O_CLOEXEC)) return fail("pipe: %s", strerror(errno));
    struct passing *p = xcalloc(1, sizeof *p);
    *p =
        (struct passing){.all = l, .in = fdopen(ends[0], "r"), .label = xstrdup(label), .to_error = to_error};
    pthread_mutex_lock(&l->mutex);
    l->count++;
    pthread_mutex_unlock(&l->mutex);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are the launcher's
    int why = pthread_create(&thread, NULL, pass_on, p);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!why) return pthread_detach(thread), ends[1];
    close(ends[1]);
    pass_on(p);  // finds no line
    return fail("a thread for what a rank prints: %s; " ERROR_RAISE_THREADS, strerror(why));
}

void labels_destroy(struct labels **pl, double seconds) {
    struct labels *l = *pl;
    struct timespec until = moment_in(seconds);
    int late = 0;
    pthread_mutex_lock(&l->mutex);
    while (l->count && !late) late = pthread_cond_timedwait(&l->fewer, &l->mutex, &until);
    bool unused = !l->count;
    pthread_mutex_unlock(&l->mutex);
    if (unused) free(l);  // else the threads that are left need it until the process ends
    *pl = NULL;
}
