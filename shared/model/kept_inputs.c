#include "shared/model/kept_inputs.h"

#include "shared/core/error.h"
#include "shared/core/sizes.h"

static size_t input_bytes(const struct model *m) { return size_bytes(m->R, m->C, dtype_size(m->dt)); }

static bool is_copied(const struct kept_inputs *in, int i) { return in->on_host && i < in->blocks - 2; }

int kept_inputs_open(struct model *m) {
    struct kept_inputs *in = &m->inputs;
    struct device *dev = m->arena.dev;
    if (!in->on_host) return 0;
    in->copies = stream_create(dev, "kept inputs");
    bool all = in->copies;
    for (int i = 0; i < 2; i++)
        all = (in->used[i] = event_create(dev)) && (in->copied[i] = event_create(dev)) && all;
    if (!all)
        return fail("activation_checkpointing.cpu_checkpointing: no stream or events for its copies: %s",
                    dev_error(dev));
    stream_phase(in->copies, PHASE_COMM);
    return 0;
}

void kept_inputs_close(struct model *m) {
    struct kept_inputs *in = &m->inputs;
    stream_destroy(&in->copies);
    for (int i = 0; i < 2; i++) {
        event_destroy(&in->used[i]);
        event_destroy(&in->copied[i]);
    }
}

// Between the slot of x[i] and the host, behind what compute has been given so far.
static void copy(struct model *m, int i, bool out) {
    struct kept_inputs *in = &m->inputs;
    int slot = i & 1;
    char *host = in->host + (size_t)i * input_bytes(m);
    event_record(in->used[slot], m->s);
    stream_wait_event(in->copies, in->used[slot]);
    dev_copy(in->copies, out ? (void *)host : in->slots[slot], out ? in->slots[slot] : (void *)host,
             input_bytes(m));
    event_record(in->copied[slot], in->copies);
}

void kept_input_begins(struct model *m, int i) {
    if (m->inputs.on_host && i < m->inputs.blocks) stream_wait_event(m->s, m->inputs.copied[i & 1]);
}

void kept_input_ends(struct model *m, int i) {
    if (is_copied(&m->inputs, i)) copy(m, i, true);
}

void kept_input_needed(struct model *m, int i) {
    if (is_copied(&m->inputs, i)) stream_wait_event(m->s, m->inputs.copied[i & 1]);
}

// The slot is free: for the block that is two below.
void kept_input_done(struct model *m, int i) {
    if (i >= 2 && i < m->inputs.blocks && is_copied(&m->inputs, i - 2)) copy(m, i - 2, false);
}
