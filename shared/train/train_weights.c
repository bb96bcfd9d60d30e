#include "shared/train/train_weights.h"

#include <stdlib.h>

#include "shared/core/error.h"
#include "shared/data/vocabulary.h"
#include "shared/evaluation/snapshots.h"
#include "shared/hf/hf_dir.h"
#include "shared/state/weights_hash.h"

// Hashes the final weights on rank 0, and writes them when asked; every rank takes part, unit by unit: the
// others wait for rank 0's disk after each, so that no deadline must cover the writing of a whole model.
int train_weights(const struct train_options *o, const struct snapshot_info *now, struct train_result *r) {
    struct topology *t = o->topology;
    const struct layout *l = t->layout;
    bool first = t->rank == 0;
    struct hf_writer *writer = NULL;
    if (first && o->weights_out && !(writer = hf_writer_create(o->weights_out, o->spec, l, t->dtype)))
        return -1;
    struct weights_hash *hash = weights_hash_create();
    int rc = 0;
    if (first && !r->interrupted) snapshots_last_begin(o->snapshots, now);
    for (int u = 0; u < l->count && !rc; u++) {
        struct unit_view view;
        if ((rc = topology_acquire(t, u, PASS_EVAL, &view))) break;
        size_t bytes = (size_t)l->units[u].n_pad * dtype_size(t->dtype);
        if (first) {
            void *host = xcalloc(1, bytes);
            dev_copy(t->compute, host, view.weights, bytes);
            rc = stream_sync(t->compute);
            if (!rc) weights_hash_unit(hash, l, u, host, t->dtype);
            if (!rc && writer) rc = hf_write_unit(writer, u, host);
            if (!rc && !r->interrupted) snapshots_last_unit(o->snapshots, u, host);
            free(host);
        }
        if (!rc) rc = topology_release(t, u, PASS_EVAL);
        double nothing = 0;
        if (!rc) rc = topology_sum(t, &nothing, 1);
    }
    r->weights_hash = weights_hash_finish(&hash);
    r->has_hash = first && !rc;
    if (writer && !rc) {
        rc = hf_writer_finish(&writer);
        if (!rc && o->tokenizer_in) rc = tokenizer_copy(o->tokenizer_in, o->weights_out);
    }
    if (writer) hf_writer_discard(&writer);
    return rc;
}
