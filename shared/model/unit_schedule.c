#include "shared/model/unit_schedule.h"

#include <stdlib.h>

#include "shared/core/error.h"

// Returns how many units may be gathered from `next` on, the unit that is used next. direction: 1 or -1.
static int reach(const struct unit_schedule *s, int next, int direction) {
    const struct layout *l = s->layout;
    int64_t budget = s->prefetch.bounded ? s->prefetch.elements : 1, before = 0;
    int count = 0;
    for (int u = next; u >= 0 && u < l->count && before < budget; u += direction, count++)
        before += l->units[u].n_pad;
    return count;
}

static int64_t live_elements(const struct unit_schedule *s) {
    int64_t all = 0;
    for (int i = 0; i < unit_schedule_count(s); i++) all += unit_schedule_elements(s, i);
    return all;
}

void unit_schedule_open(struct unit_schedule *s, const struct layout *l, const struct unit_prefetch *p) {
    *s = (struct unit_schedule){.layout = l, .prefetch = *p};
    int deepest = 0;
    for (int u = 0; u < l->count; u++) {
        int up = u + 1 < l->count ? reach(s, u + 1, 1) : 0, down = u > 0 ? reach(s, u - 1, -1) : 0;
        if (up > deepest) deepest = up;
        if (down > deepest) deepest = down;
    }
    s->slots = p->all ? l->count : 1 + deepest;
    while (p->live > 0 && s->slots > 1 && live_elements(s) > p->live) s->slots--;
    s->unit = xcalloc((size_t)s->slots + 1, sizeof *s->unit);
    s->by_eval = xcalloc((size_t)s->slots + 1, sizeof *s->by_eval);
    s->gathered = xcalloc((size_t)l->count, sizeof *s->gathered);
    unit_schedule_invalidate(s);
}

void unit_schedule_close(struct unit_schedule *s) {
    free(s->unit);
    free(s->by_eval);
    free(s->gathered);
    *s = (struct unit_schedule){0};
}

int64_t unit_schedule_elements(const struct unit_schedule *s, int slot) {
    int64_t most = 0;
    for (int u = unit_schedule_first(s, slot); u < s->layout->count; u = unit_schedule_next(s, u))
        if (s->layout->units[u].n_pad > most) most = s->layout->units[u].n_pad;
    return most;
}

bool unit_schedule_holds(const struct unit_schedule *s, int u, enum pass pass) {
    int slot = unit_schedule_slot(s, u);
    return s->prefetch.all || (s->unit[slot] == u && (pass == PASS_EVAL || !s->by_eval[slot]));
}

void unit_schedule_gathered(struct unit_schedule *s, int u, enum pass pass) {
    int slot = unit_schedule_slot(s, u);
    s->unit[slot] = u;
    s->by_eval[slot] = pass == PASS_EVAL;
    if (pass != PASS_EVAL) s->gathered[u] = true;
}

bool unit_schedule_is_repeat(const struct unit_schedule *s, int u, enum pass pass) {
    return pass != PASS_EVAL && s->gathered[u];
}

void unit_schedule_invalidate(struct unit_schedule *s) {
    for (int i = 0; i <= s->slots; i++) s->unit[i] = -1;
    for (int u = 0; u < s->layout->count; u++) s->gathered[u] = false;
}

int unit_schedule_ahead(const struct unit_schedule *s, int next, enum pass pass, int k) {
    int direction = pass == PASS_BACKWARD ? -1 : 1;
    if (s->prefetch.all || next < 0 || next >= s->layout->count || k >= s->slots - 1) return -1;
    return k < reach(s, next, direction) ? next + direction * k : -1;
}
