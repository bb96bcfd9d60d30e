// A port that writes down what a state machine says.
#ifndef STARRING_TESTS_PS_TEST_PS_LOG_H
#define STARRING_TESTS_PS_TEST_PS_LOG_H

#include "test_ps_sim.h"

struct log {
    int count;
    struct {
        int peer;
        struct wire_header h;
        size_t bytes;
    } sent[256];
    _Atomic int *inflight;  // of the last reply with a payload
};

static inline void log_send(void *ctx, int peer, const struct ps_message *m) {
    struct log *l = ctx;
    assert_true(l->count < 256);
    l->sent[l->count].peer = peer;
    l->sent[l->count].h = m->header;
    l->sent[l->count++].bytes = m->bytes;
    if (m->inflight) l->inflight = m->inflight;
}

static inline int logged(const struct log *l, int peer, enum wire_kind kind) {
    int n = 0;
    for (int i = 0; i < l->count; i++) n += l->sent[i].peer == peer && l->sent[i].h.kind == kind;
    return n;
}

#endif
