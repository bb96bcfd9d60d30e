#include "ps/errands.h"

#include <pthread.h>
#include <stdlib.h>

#include "ps/trust/descriptors.h"
#include "shared/core/error.h"

struct errand {
    struct errand *next;
    void (*what)(void *);
    void (*release)(void *);
    void *arg;
};

struct errands {
    const char *label;
    pthread_t thread;
    pthread_mutex_t mutex;  // guards what follows
    pthread_cond_t changed;
    struct errand *first, **last;
    uint64_t asked, done;
    double since_s;  // the one in hand; 0: there is none
    bool quit;
};

// The next one, once there is one. NULL: there will be none.
static struct errand *take(struct errands *e) {
    pthread_mutex_lock(&e->mutex);
    while (!e->first && !e->quit) pthread_cond_wait(&e->changed, &e->mutex);
    struct errand *x = e->first;
    if (x) e->first = x->next;
    if (!e->first) e->last = &e->first;
    e->since_s = x ? now_seconds() : 0;
    pthread_mutex_unlock(&e->mutex);
    return x;
}

static void *errands_main(void *arg) {
    struct errands *e = arg;
    struct errand *x;
    error_set_label("%s", e->label);
    descriptors_apart();
    while ((x = take(e))) {
        x->what(x->arg);
        if (x->release) x->release(x->arg);
        free(x);
        pthread_mutex_lock(&e->mutex);
        e->done++;
        e->since_s = 0;
        pthread_cond_broadcast(&e->changed);
        pthread_mutex_unlock(&e->mutex);
    }
    return NULL;
}

struct errands *errands_create(void) {
    struct errands *e = xcalloc(1, sizeof *e);
    e->label = error_label();
    e->last = &e->first;
    pthread_mutex_init(&e->mutex, NULL);
    cond_init(&e->changed);
    if (pthread_create(&e->thread, NULL, errands_main, e) == 0) return e;
    fail("cannot start the thread that writes and reads the job's files: " ERROR_RAISE_THREADS);
    free(e);
    return NULL;
}

void errands_destroy(struct errands **at) {
    struct errands *e = *at;
    if (!e) return;
    pthread_mutex_lock(&e->mutex);
    e->quit = true;
    pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->mutex);
    pthread_join(e->thread, NULL);
    pthread_mutex_destroy(&e->mutex);
    pthread_cond_destroy(&e->changed);
    free(e);
    *at = NULL;
}

uint64_t errands_ask(struct errands *e, void (*what)(void *), void *arg, void (*release)(void *)) {
    struct errand *x = xcalloc(1, sizeof *x);
    *x = (struct errand){.what = what, .release = release, .arg = arg};
    pthread_mutex_lock(&e->mutex);
    *e->last = x;
    e->last = &x->next;
    uint64_t number = ++e->asked;
    pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->mutex);
    return number;
}

uint64_t errands_asked(struct errands *e) {
    pthread_mutex_lock(&e->mutex);
    uint64_t number = e->asked;
    pthread_mutex_unlock(&e->mutex);
    return number;
}

bool errands_wait(struct errands *e, uint64_t number, double seconds) {
    struct timespec end = moment_in(seconds);
    int late = 0;
    pthread_mutex_lock(&e->mutex);
    while (e->done < number && !late && seconds > 0)
        late = pthread_cond_timedwait(&e->changed, &e->mutex, &end);
    bool done = e->done >= number;
    pthread_mutex_unlock(&e->mutex);
    return done;
}

bool errands_done(struct errands *e, uint64_t number) { return errands_wait(e, number, 0); }

double errands_age(struct errands *e, double now, uint64_t *number) {
    pthread_mutex_lock(&e->mutex);
    double age = e->since_s > 0 ? now - e->since_s : 0;
    *number = e->done + 1;
    pthread_mutex_unlock(&e->mutex);
    return age;
}
