#include "ps/replica/rescue_part.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/core/error.h"
#include "shared/state/checkpoint.h"

struct rescue_part {
    struct rescue_part_options o;
    int64_t steps;
    uint64_t life;
    struct update_scalars last;
    pthread_t tid;
    bool running;             // the thread is to be joined
    bool wanted[2], left[2];  // the own part, the replica's: asked for, and written or refused
    char why[WIRE_TEXT_MAX];  // the first part that cannot be left; "": none so far
    pthread_mutex_t lock;     // guards wanted and why
    _Atomic int quit, idle;   // idle: the thread looks at wanted no more
};

struct server_buffers *replica_as_server(const struct replica_buffers *replicas, int count) {
    struct server_buffers *b = xcalloc((unsigned long)count + 1, sizeof *b);
    for (int key = 0; key < count; key++) {
        b[key].master = replicas[key].master;
        memcpy(b[key].state, replicas[key].state, sizeof b[key].state);
    }
    return b;
}

// ---------------------------------------------------------------- the thread
static int write_keys(struct rescue_part *p, struct state_file *f, int server,
                      const struct server_buffers *buffers) {
    int count, rc = 0, *keys = state_file_keys(p->o.map, server, &count);
    for (int i = 0; i < count && !rc; i++)
        rc = state_file_write(f, &(struct key_counts){.key = keys[i]}, &buffers[keys[i]], &p->quit);
    free(keys);
    return rc;
}

// A full disk has no room for the reason either (NAME.failed): it is kept for who asks. In the run directory's own words,
// so that its end is not cut off.
static void keep_reason(struct rescue_part *p, int server, const char *error) {
    size_t n = strlen(p->o.run_dir);
    bool ours = strncmp(error, p->o.run_dir, n) == 0 && error[n] == '/';
    warn("the state of server %d cannot be kept for the next epoch: %s", server, error);
    pthread_mutex_lock(&p->lock);
    if (!p->why[0]) snprintf(p->why, sizeof p->why, "%.300s", ours ? error + n + 1 : error);
    pthread_mutex_unlock(&p->lock);
}

// Whether server `server` has left its part itself before it died: what counts already is not written again, for
// the checkpoint may be completed at any moment.
static bool has_left(const struct rescue_part *p, int server) {
    char *dir = checkpoint_partial(p->o.run_dir, p->steps, p->life), who[32];
    snprintf(who, sizeof who, "server-%d", server);
    bool there = part_file_is_there(dir, who);
    free(dir);
    return there;
}

static void leave(struct rescue_part *p, bool replica) {
    int server = replica ? replica_primary(p->o.rank, p->o.map->servers) : p->o.rank;
    const struct state_file_options so = {.config = p->o.config,
                                          .layout = p->o.layout,
                                          .map = p->o.map,
                                          .rank = server,
                                          .run_dir = p->o.run_dir,
                                          .step = p->steps,
                                          .life = p->life};
    char why[WIRE_TEXT_MAX] = "", *error = NULL;
    if (replica && has_left(p, server)) return;
    if (p->o.settle(p->o.ctx, replica, p->steps, &p->last, why) != 0) {
        state_file_refuse(&so, why);
        keep_reason(p, server, why);
        return;
    }
    struct state_file *f = state_file_create(&so, &error);
    if (f && write_keys(p, f, server, replica ? p->o.replica : p->o.own) != 0 && p->quit)
        state_file_discard(&f, "the server was stopped");
    if (f) state_file_finish(&f, &error);
    if (error) keep_reason(p, server, error);
    free(error);
}

// The next part that is wanted and has not been left; -1: none, and the thread ends.
static int next_part(struct rescue_part *p) {
    int next = -1;
    pthread_mutex_lock(&p->lock);
    for (int i = 0; i < 2 && next < 0; i++)
        if (p->wanted[i] && !p->left[i]) next = i;
    if (next < 0) atomic_store(&p->idle, 1);
    pthread_mutex_unlock(&p->lock);
    return next;
}

static void *leave_parts(void *arg) {
    struct rescue_part *p = arg;
    error_set_label("server %d", p->o.rank);
    for (int part; (part = next_part(p)) >= 0; p->left[part] = true) leave(p, part == 1);
    return NULL;
}

// ---------------------------------------------------------------- the server's main thread
static void join(struct rescue_part *p) {
    if (p->running) pthread_join(p->tid, NULL);
    p->running = false;
}

static struct rescue_part *create(const struct rescue_part_options *o, const struct wire_header *h) {
    struct rescue_part *p = xcalloc(1, sizeof *p);
    p->o = *o;
    p->steps = h->step;
    p->life = h->seq;
    p->last = (struct update_scalars){.grad_scale = h->grad_scale, .skip = (h->flags & WIRE_SKIP) != 0};
    p->wanted[0] = true;
    atomic_store(&p->idle, 1);
    pthread_mutex_init(&p->lock, NULL);
    return p;
}

void rescue_part_asked(struct rescue_part **at, const struct rescue_part_options *o,
                       const struct wire_header *h) {
    if (!*at) *at = create(o, h);
    struct rescue_part *p = *at;
    pthread_mutex_lock(&p->lock);
    p->wanted[1] = p->wanted[1] || (h->count == 1 && h->values[0] > 0);
    pthread_mutex_unlock(&p->lock);
    if (!atomic_load(&p->idle)) return;
    join(p);
    if (p->left[0] && (p->left[1] || !p->wanted[1])) return;
    atomic_store(&p->idle, 0);
    p->running = pthread_create(&p->tid, NULL, leave_parts, p) == 0;
    if (p->running) return;
    atomic_store(&p->idle, 1);
    fail("cannot start a thread that writes this server's state: " ERROR_RAISE_THREADS);
}

bool rescue_part_failed(struct rescue_part *p, struct wire_header *answer) {
    *answer = (struct wire_header){.kind = WIRE_RESCUE, .step = p->steps, .seq = p->life};
    pthread_mutex_lock(&p->lock);
    memcpy(answer->text, p->why, sizeof p->why);
    pthread_mutex_unlock(&p->lock);
    return answer->text[0] != 0;
}

void rescue_part_destroy(struct rescue_part **at) {
    struct rescue_part *p = *at;
    if (!p) return;
    atomic_store(&p->quit, 1);
    join(p);
    pthread_mutex_destroy(&p->lock);
    free(p);
    *at = NULL;
}
