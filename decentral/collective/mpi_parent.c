#include "decentral/collective/mpi_parent.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "shared/core/error.h"

#define LOOK_EVERY_NS 200000000L

struct mpi_parent {
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    bool released;
    pid_t pid;  // the parent's at first
};

static void wait_a_little(struct mpi_parent *p) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    t.tv_nsec += LOOK_EVERY_NS;
    t.tv_sec += t.tv_nsec / 1000000000L;
    t.tv_nsec %= 1000000000L;
    pthread_cond_timedwait(&p->changed, &p->mutex, &t);
}

// An orphan has another parent. Nobody is left whom its error could concern.
static void *look(void *ctx) {
    struct mpi_parent *p = ctx;
    pthread_mutex_lock(&p->mutex);
    while (!p->released) {
        if (getppid() != p->pid) _exit(EXIT_RUN_FAILED);
        wait_a_little(p);
    }
    pthread_mutex_unlock(&p->mutex);
    return NULL;
}

struct mpi_parent *mpi_parent_watch(void) {
    struct mpi_parent *p = xcalloc(1, sizeof *p);
    p->pid = getppid();
    pthread_mutex_init(&p->mutex, NULL);
    pthread_cond_init(&p->changed, NULL);
    if (pthread_create(&p->thread, NULL, look, p) == 0) return p;
    pthread_cond_destroy(&p->changed);
    pthread_mutex_destroy(&p->mutex);
    free(p);
    return NULL;
}

void mpi_parent_release(struct mpi_parent **at) {
    struct mpi_parent *p = *at;
    if (!p) return;
    pthread_mutex_lock(&p->mutex);
    p->released = true;
    pthread_cond_signal(&p->changed);
    pthread_mutex_unlock(&p->mutex);
    pthread_join(p->thread, NULL);
    pthread_cond_destroy(&p->changed);
    pthread_mutex_destroy(&p->mutex);
    free(p);
    *at = NULL;
}
