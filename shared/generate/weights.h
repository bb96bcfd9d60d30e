// A model's weights on a device, and nothing else of training: no gradient, no optimizer, no master.
//
// Ownership  The weights own their device memory; release them before the device is closed.
// Threads    One at a time; loading enqueues on the stream and waits for it.
#ifndef STARRING_SHARED_GENERATE_WEIGHTS_H
#define STARRING_SHARED_GENERATE_WEIGHTS_H

#include "shared/core/arena.h"
#include "shared/core/topology.h"

struct hf_reader;

struct weights {
    struct arena arena;
    const struct layout *layout;
    struct unit_view *units;  // (layout->count)
};

struct weights_options {
    const struct layout *layout;
    enum dtype dtype;
    struct device *dev;
    struct stream *stream;
};

// Bytes by class that weights_load takes on the device.
void weights_predict(const struct layout *l, enum dtype dt, size_t bytes[MEM_CLASSES]);
// Reads every unit and rounds it to the dtype. 0, or -1 after logging (weights_release either way).
int weights_load(struct weights *w, const struct weights_options *o, struct hf_reader *from);
void weights_release(struct weights *w);

#endif
