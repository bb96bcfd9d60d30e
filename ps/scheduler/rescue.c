#include "ps/scheduler/rescue.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ps/job/shard_map.h"
#include "ps/job/timing.h"
#include "shared/core/error.h"
#include "shared/core/text.h"
#include "shared/state/checkpoint.h"

#define REASON_S 0.5  // for a server's word why its part cannot be left

void rescue_init(struct rescue *r, const struct scheduler_options *o) {
    *r = (struct rescue){.config = o->config, .port = o->rescue, .servers = o->map->servers};
    r->dead = xcalloc((unsigned long)r->servers, sizeof *r->dead);
}

void rescue_free(struct rescue *r) { free(r->dead); }

void rescue_starts(struct rescue *r, const struct start_point *start) {
    memset(r->dead, 0, (size_t)r->servers * sizeof *r->dead);
    r->active = r->given_up = r->known = false;
    if (!r->config->ps.replicate || !r->port.read) return;
    r->known = r->port.read(r->port.ctx, start->checkpoint, &r->now) == 0;
}

void rescue_follows(struct rescue *r, const struct wire_header *decision,
                    const struct step_figures *figures) {
    bool skipped = (decision->flags & WIRE_SKIP) != 0;
    struct train_state *s = &r->now;
    if (!r->known) return;
    r->last = *figures;
    s->step = decision->step + 1;
    s->dealt += r->config->train_batch;
    s->updates += !skipped;
    s->samples += skipped ? 0 : r->config->train_batch;
    s->skipped_in_a_row = skipped ? s->skipped_in_a_row + 1 : 0;
    if (!r->config->scaler.enabled) return;
    error_quiet(1);  // where this ends the run, the workers say so
    scaler_update(&s->scaler, &r->config->scaler, skipped);
    error_quiet(0);
}

// Whether every server's state is still somewhere: its own, or its neighbour's replica.
static bool is_whole(const struct rescue *r, int *lost) {
    for (int s = 0; s < r->servers; s++) {
        *lost = s;
        if (r->dead[s] && r->dead[replica_holder(s, r->servers)]) return false;
    }
    return true;
}

static void add_reason(struct rescue *r, const char *what) {
    size_t at = strlen(r->why);
    snprintf(r->why + at, sizeof r->why - at, "; %s", what);
}

static void tell(struct rescue *r, const struct membership *m) {
    for (int s = 0; s < r->servers; s++) {
        struct wire_header h = r->message;
        if (r->dead[s] || !m->m[m->workers + s].present) continue;
        h.count = 1;
        h.values[0] = r->dead[replica_primary(s, r->servers)];
        port_tell(&m->o.port, m->workers + s, &h);
    }
}

static bool begin(struct rescue *r, const struct membership *m, const char *why,
                  const struct wire_header *last, uint64_t life) {
    const struct rescue_job job = {r->now, r->last, life, m->first_identity};
    bool idle = !r->known || !m->started || m->closing || last->kind == WIRE_NONE;
    if (idle || r->now.step != last->step + 1 || r->port.begin(r->port.ctx, &job) != 0) return false;
    r->active = true;
    r->told = r->asked = false;
    r->failed_s = r->since_s = 0;
    r->message = (struct wire_header){.kind = WIRE_RESCUE,
                                      .step = last->step + 1,
                                      .seq = life,
                                      .grad_scale = last->grad_scale,
                                      .flags = last->flags & WIRE_SKIP};
    text_words(r->why, 380, why);
    return true;
}

bool rescue_dies(struct rescue *r, const struct membership *m, int member, const char *why,
                 const struct wire_header *last, uint64_t life) {
    int server = member - m->workers, lost = 0;
    char text[96];
    bool more = server >= 0 && server < r->servers && !r->dead[server];
    if (!r->active && !begin(r, m, why, last, life)) return false;
    if (more) r->dead[server] = true;
    if (r->given_up) return true;
    if (is_whole(r, &lost)) {
        if (more || !r->asked) tell(r, m);
        r->asked = true;
        return true;
    }
    snprintf(text, sizeof text, "server %d and its neighbour, which kept its replica, have both died", lost);
    add_reason(r, text);
    r->given_up = true;
    r->port.give_up(r->port.ctx);
    return true;
}

// Without that part there is no checkpoint, unless all parts are there already.
void rescue_answered(struct rescue *r, const char *name, const struct wire_header *h) {
    char text[WIRE_TEXT_MAX];
    if (!r->active || r->given_up || h->seq != r->message.seq || !h->text[0]) return;
    snprintf(text, sizeof text, "%s could not keep its state: %s", name, TEXT_WORDS(300, h->text));
    add_reason(r, text);
    r->given_up = true;
    r->port.give_up(r->port.ctx);
}

bool rescue_over(struct rescue *r, double now) {
    char why[WIRE_TEXT_MAX] = "";
    if (!r->active) return false;
    if (!r->since_s) r->since_s = now;
    enum rescue_state state = r->port.state(r->port.ctx, why);
    if (state == RESCUE_WAITS) return false;
    if (state == RESCUE_FAILED && !r->given_up) {
        char text[WIRE_TEXT_MAX];
        // A full disk has no room for a server's reason: the server says it, a moment later.
        if (!r->failed_s) r->failed_s = now;
        if (strstr(why, CHECKPOINT_NO_REASON) && now - r->failed_s < REASON_S) return false;
        snprintf(text, sizeof text, "the servers' state could not be kept: %s", TEXT_WORDS(300, why));
        add_reason(r, text);
    }
    r->active = false;
    return true;
}

bool rescue_slow(struct rescue *r, double now, char text[WIRE_TEXT_MAX]) {
    if (r->told || !r->since_s || now - r->since_s <= ps_overdue_s(r->config)) return false;
    snprintf(text, WIRE_TEXT_MAX,
             "waiting for the servers to leave their state in the run directory: %.0f s so far",
             now - r->since_s);
    return r->told = true;
}
