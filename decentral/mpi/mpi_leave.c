#include "decentral/mpi/mpi_leave.h"

#include <mpi.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <time.h>

#include "shared/core/error.h"
#include "shared/launch/stop.h"

#define WATCHED_S 3.0   // a process that is told to end all ranks does not mind one that has not left
#define ALONE_S   60.0  // mpirun takes that for a failure

struct leaving {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    bool done;
};

static void *finalize(void *ctx) {
    struct leaving *l = ctx;
    MPI_Finalize();
    pthread_mutex_lock(&l->mutex);
    l->done = true;
    pthread_cond_signal(&l->changed);
    pthread_mutex_unlock(&l->mutex);
    return NULL;
}

static void meet(void) {
    MPI_Request request;
    int done = 0, rc = MPI_Ibarrier(MPI_COMM_WORLD, &request);
    while (rc == MPI_SUCCESS && !done) {
        rc = MPI_Test(&request, &done, MPI_STATUS_IGNORE);
        if (!done) nanosleep(&(struct timespec){.tv_nsec = 500000}, NULL);
    }
}

// Where it does not end in time the thread is left behind, and what it looks at.
void mpi_leave(void) {
    struct leaving *l = xcalloc(1, sizeof *l);
    pthread_t thread;
    bool watched = stop_rank_is_watched();
    pthread_mutex_init(&l->mutex, NULL);
    cond_init(&l->changed);
    meet();
    if (pthread_create(&thread, NULL, finalize, l) != 0) {
        MPI_Finalize();
        free(l);
        return;
    }
    struct timespec until = moment_in(watched ? WATCHED_S : ALONE_S);
    pthread_mutex_lock(&l->mutex);
    while (!l->done && pthread_cond_timedwait(&l->changed, &l->mutex, &until) == 0) continue;
    bool done = l->done;
    pthread_mutex_unlock(&l->mutex);
    if (!done) {
        pthread_detach(thread);
        stop_rank_stays();
        return;
    }
    pthread_join(thread, NULL);
    pthread_cond_destroy(&l->changed);
    pthread_mutex_destroy(&l->mutex);
    free(l);
}
