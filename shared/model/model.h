// The transformer, unit by unit: no rank, no communication, no weights of its own. The caller hands in
// each unit's view; the model owns activations and scratch.
//
// Threads   One model belongs to one rank's main thread. Functions only enqueue on the compute stream.
// Order     model_set_seq where T differs, model_set_batch, then forward of units 0..n-1, then backward of units n-1..0.
//
// The head's logits are never stored whole: its backward computes them in chunks of rows, turns each
// chunk into the loss and its gradient, and both products, before the next chunk. So in training the
// head's forward is the final norm alone; in evaluation (want_loss) it is norm, logits and loss.
#ifndef STARRING_SHARED_MODEL_MODEL_H
#define STARRING_SHARED_MODEL_MODEL_H

#include "shared/core/arena.h"
#include "shared/core/topology.h"
#include "shared/model/head_plan.h"
#include "shared/model/layout.h"
#include "shared/model/recompute.h"

struct model_options {
    const struct model_spec *spec;
    const struct layout *layout;
    struct device *dev;
    struct stream *compute;
    enum dtype dtype;
    int64_t batch, seq;     // B, T of one micro-batch, the largest T
    int64_t micro_batches;  // of a step, added in the gradients themselves; 0: 1
    int64_t logits_bytes;   // of a chunk of logits, at most; 0: the device's rule (shared/model/head_plan.h)
    bool gpu;               // where dev is NULL: the device's memory is not the host's
    bool watch_gradients;   // grad_watch.h will be asked which tensor's gradient is not finite
    struct recompute_options recompute;  // what the backward computes again; nothing where forward_only
    // Nothing will be trained: no memory for gradients and losses, one for all blocks' activations, and
    // sequences may be shorter than seq. Only model_set_tokens, model_forward (without want_loss) and
    // model_row_logits may then be called.
    bool forward_only;
};

struct model;

// How its head cuts the logits into chunks (dev may be NULL).
struct head_plan model_head_plan(const struct model_options *o);
// Bytes the model will take, by class; allocates nothing (dev and compute may be NULL).
void model_predict(const struct model_options *o, size_t bytes[MEM_CLASSES]);
struct model *model_create(const struct model_options *o);  // NULL after logging; copies *spec
void model_destroy(struct model **m);

// T of the micro-batches from now on, at most the options' seq: in the memory of the largest.
void model_set_seq(struct model *m, int64_t seq);
// tokens, targets: host (B,T), a target below 0 none: it counts in no loss and no gradient; the copies are enqueued, so keep them until an event behind this has passed.
// For a device with its own memory they should be page-locked (MEM_HOST): the host waits for copies of other
// memory. loss_scale_over_tokens multiplies the gradient of the summed loss: loss_scale /
// (tokens the mean is taken over). zero_loss: start the step's loss sum at 0.
void model_set_batch(struct model *m, const int32_t *tokens, const int32_t *targets,
                     float loss_scale_over_tokens, bool zero_loss);
// forward_only: host tokens (B,T) of sequences of T = seq tokens, at most the options' seq; kept as above.
void model_set_tokens(struct model *m, const int32_t *tokens, int64_t seq);
// Forward of unit u. tied: unit 0's view when u is the head of a tied model and want_loss, else NULL.
void model_forward(struct model *m, int u, const struct unit_view *view, const struct unit_view *tied,
                   bool want_loss);
void model_backward(struct model *m, int u, const struct unit_view *view, const struct unit_view *tied);
// The sum of token losses since the last zero_loss: its address in device memory, as compute's work so far
// leaves it; and its value, for which the host waits (NAN when the stream has failed).
const double *model_loss_on_device(const struct model *m);
double model_loss_sum(const struct model *m);
// Logits (V) of one row, 0 <= row < B*T, as fp32, from the final norm of the last forward; blocks. 0 or -1.
int model_row_logits(struct model *m, const struct unit_view *head, const struct unit_view *tied, int64_t row,
                     float *out);

#endif
