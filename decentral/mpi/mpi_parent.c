#include "decentral/mpi/mpi_parent.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "shared/core/error.h"
#include "shared/launch/stop.h"

#define LOOK_EVERY_S 0.2
#define DEADLINE_S   30.0  // of who names none
#define DEADLINES    10

struct mpi_parent {
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    bool released;
    pid_t pid;  // the parent's at first
    double deadline_s;
};

// What passes while this process itself stands still is not counted.
static double wait_a_little(struct mpi_parent *p) {
    double start = now_seconds();
    struct timespec until = moment_in(LOOK_EVERY_S);
    pthread_cond_timedwait(&p->changed, &p->mutex, &until);
    double took = now_seconds() - start;
    return took < 5 * LOOK_EVERY_S ? took : 5 * LOOK_EVERY_S;
}

static void give_up(double waited_s) {
    const char *rank = getenv("OMPI_COMM_WORLD_RANK");
    fail("rank %s has waited in MPI_Init for %.0f s: another rank is stopped, or has not been started",
         rank ? rank : "?", waited_s);
    _exit(EXIT_RUN_FAILED);
}

// An orphan has another parent. Nobody is left whom its error could concern.
static void *look(void *ctx) {
    struct mpi_parent *p = ctx;
    double waited_s = 0;
    pthread_mutex_lock(&p->mutex);
    while (!p->released) {
        if (getppid() != p->pid) _exit(EXIT_RUN_FAILED);
        if (waited_s > DEADLINES * p->deadline_s) give_up(waited_s);
        waited_s += wait_a_little(p);
    }
    pthread_mutex_unlock(&p->mutex);
    return NULL;
}

struct mpi_parent *mpi_parent_watch(double deadline_s) {
    stop_rank_enters();
    struct mpi_parent *p = xcalloc(1, sizeof *p);
    p->pid = getppid();
    p->deadline_s = deadline_s > 0 ? deadline_s : DEADLINE_S;
    pthread_mutex_init(&p->mutex, NULL);
    cond_init(&p->changed);
    if (pthread_create(&p->thread, NULL, look, p) == 0) return p;
    pthread_cond_destroy(&p->changed);
    pthread_mutex_destroy(&p->mutex);
    free(p);
    return NULL;
}

void mpi_parent_release(struct mpi_parent **at) {
    struct mpi_parent *p = *at;
    stop_rank_met();
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
