#include "ps/net/fault.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "shared/config/config.h"
#include "shared/core/error.h"

struct waiting_message {
    struct waiting_message *next;
    struct net_message message;
    double due;
};

struct fault_line {
    struct message_fault fault;
    uint64_t stream, seen;
    struct wire_count *counts;
    struct waiting_message *first;  // ordered by due time; equal ones by arrival
};

struct fault_plan fault_plan_of(const struct config *c, enum ps_role role, int rank) {
    char why[FAULT_WHY_MAX];
    struct fault_plan p = {.role = (uint64_t)role << 32 | (uint16_t)rank};
    message_fault_parse(c->fault, c->seed, &p.fault, why);
    return p;
}

struct fault_line *fault_line_create(const struct fault_plan *plan, int socket, struct wire_count *counts) {
    struct fault_line *l = xcalloc(1, sizeof *l);
    l->fault = plan->fault;
    l->stream = plan->role << 16 | (uint16_t)socket;
    l->counts = counts;
    return l;
}

void fault_line_destroy(struct fault_line **at) {
    struct fault_line *l = *at;
    if (!l) return;
    while (l->first) {
        struct waiting_message *w = l->first;
        l->first = w->next;
        ps_frame_release(w->message.frame);
        free(w);
    }
    free(l);
    *at = NULL;
}

// A frame with its own copy of the payload.
struct copied_frame {
    struct ps_frame frame;
    char data[];
};

static void copy_release(struct ps_frame *f) { free(f); }

static void insert(struct fault_line *l, const struct net_message *m, double due) {
    struct waiting_message *w = xcalloc(1, sizeof *w), **at = &l->first;
    while (*at && (*at)->due <= due) at = &(*at)->next;
    *w = (struct waiting_message){.next = *at, .message = *m, .due = due};
    *at = w;
}

static void count(const struct fault_line *l, enum wire_fault what) {
    atomic_fetch_add(&l->counts->faults[what], 1);
}

void fault_take(struct fault_line *l, const struct net_message *m, double now) {
    struct message_faults fate = message_faults_of(&l->fault, l->stream, l->seen++);
    if (fate.twice && !fate.lost) {
        struct net_message copy = *m;
        if (m->frame) {
            struct copied_frame *f = xcalloc(1, sizeof *f + m->frame->bytes);
            memcpy(f->data, m->frame->data, m->frame->bytes);
            f->frame = (struct ps_frame){f->data, m->frame->bytes, copy_release};
            copy.frame = &f->frame;
        }
        count(l, FAULT_TWICE);
        insert(l, &copy, now + fate.copy_late_s);
    }
    count(l, FAULT_MESSAGES);
    if (fate.lost) {
        count(l, FAULT_LOST);
        ps_frame_release(m->frame);
        return;
    }
    if (fate.overtaken) count(l, FAULT_OVERTAKEN);
    insert(l, m, now + fate.late_s);
}

bool fault_give(struct fault_line *l, struct net_message *m, double now) {
    struct waiting_message *w = l->first;
    if (!w || w->due > now) return false;
    *m = w->message;
    l->first = w->next;
    free(w);
    return true;
}

double fault_due(const struct fault_line *l) { return l->first ? l->first->due : INFINITY; }
