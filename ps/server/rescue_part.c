#include "ps/server/rescue_part.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/core/background.h"
#include "shared/core/error.h"
#include "shared/state/checkpoint.h"

struct rescue_part {
    struct rescue_part_options o;
    int64_t steps;
    uint64_t life;
    struct update_scalars last;
    struct background *writer;
    struct part {
        struct rescue_part *p;
        bool replica, asked;
    } parts[2];  // its own, the replica's
};

// ---------------------------------------------------------------- on the writer's thread
// A full disk has no room for the reason either (NAME.failed): it is kept for who asks. In the run directory's own words,
// so that its end is not cut off. Returns -1.
static int keep_reason(const struct rescue_part *p, int server, const char *error) {
    size_t n = strlen(p->o.run_dir);
    bool ours = strncmp(error, p->o.run_dir, n) == 0 && error[n] == '/';
    char *kept = xasprintf("%.300s", ours ? error + n + 1 : error);
    warn("the state of server %d cannot be kept for the next epoch: %s", server, error);
    error_take_over(kept);
    free(kept);
    return -1;
}

static int leave(void *arg) {
    const struct part *part = arg;
    struct rescue_part *p = part->p;
    int server = part->replica ? replica_primary(p->o.rank, p->o.map->servers) : p->o.rank;
    const struct state_file_options so = {.config = p->o.config,
                                          .layout = p->o.layout,
                                          .map = p->o.map,
                                          .rank = server,
                                          .run_dir = p->o.run_dir,
                                          .step = p->steps,
                                          .life = p->life};
    char why[WIRE_TEXT_MAX] = "", *error = NULL;
    if (part->replica) {
        // A part that the server has left itself before it died counts already, and is not written again: the checkpoint may
        // be completed at any moment.
        char *dir = checkpoint_partial(p->o.run_dir, CHECKPOINT_ALL, p->steps, p->life), who[32];
        snprintf(who, sizeof who, "server-%d", server);
        bool there = part_file_is_there(dir, who);
        free(dir);
        if (there) return 0;
    }
    if (p->o.settle(p->o.ctx, part->replica, p->steps, &p->last, why) != 0) {
        state_file_refuse(&so, why);
        return keep_reason(p, server, why);
    }
    struct state_file *f = state_file_create(&so, &error);
    const struct server_buffers *buffers = part->replica ? p->o.replica : p->o.own;
    const _Atomic int *quit = background_flag(p->writer);
    int count, failed = 0, *keys = state_file_keys(p->o.map, server, &count);
    for (int i = 0; f && i < count && !failed; i++)
        failed = state_file_write(f, &(struct key_counts){.key = keys[i]}, &buffers[keys[i]], quit);
    free(keys);
    if (failed && *quit) state_file_discard(&f, "the server was stopped");
    if (f) state_file_finish(&f, &error);
    int rc = error ? keep_reason(p, server, error) : 0;
    free(error);
    return rc;
}

// ---------------------------------------------------------------- the server's main thread
static struct rescue_part *create(const struct rescue_part_options *o, const struct wire_header *h) {
    char label[32];
    snprintf(label, sizeof label, "server %d", o->rank);
    struct rescue_part *p = xcalloc(1, sizeof *p);
    p->o = *o;
    p->steps = h->step;
    p->life = h->seq;
    p->last = (struct update_scalars){.grad_scale = h->grad_scale, .skip = (h->flags & WIRE_SKIP) != 0};
    if (!(p->writer = background_create("writes this server's state", label))) rescue_part_destroy(&p);
    return p;
}

void rescue_part_asked(struct rescue_part **at, const struct rescue_part_options *o,
                       const struct wire_header *h) {
    if (!*at && !(*at = create(o, h))) return;
    for (int i = 0; i < 2; i++) {
        struct part *part = &(*at)->parts[i];
        if (part->asked || (i == 1 && !(h->count == 1 && h->values[0] > 0))) continue;
        *part = (struct part){.p = *at, .replica = i == 1, .asked = true};
        background_ask((*at)->writer, leave, part, NULL);
    }
}

bool rescue_part_failed(struct rescue_part *p, struct wire_header *answer) {
    const char *why = p ? background_why(p->writer) : NULL;
    if (!why) return false;
    *answer = (struct wire_header){.kind = WIRE_RESCUE, .step = p->steps, .seq = p->life};
    snprintf(answer->text, sizeof answer->text, "%s", why);
    return true;
}

void rescue_part_destroy(struct rescue_part **at) {
    struct rescue_part *p = *at;
    if (!p) return;
    if (p->writer) background_quit(p->writer);
    background_destroy(&p->writer);
    free(p);
    *at = NULL;
}
