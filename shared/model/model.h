// The transformer, unit by unit. It knows no ranks and no communication, and owns no weights: the caller passes the view
// of each unit. The model owns activations and scratch memory.
//
// Threads   One model belongs to one rank's main thread. Functions only enqueue on the compute stream.
// Order     model_set_seq if T differs, model_set_batch, forward of units 0..n-1, backward of units n-1..0.
//
// The head's logits are never stored whole. Its backward computes them in chunks of rows; per chunk it computes
// the loss, the gradient and both products before the next chunk. So in training the head's forward is only the
// final norm; in evaluation (want_loss) it is norm, logits and loss.
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
    int64_t batch, seq;     // B, and the largest T of one micro-batch
    int64_t micro_batches;  // per step, if they are summed in the 16-bit gradients themselves; 0: 1
    int64_t logits_bytes;   // limit per chunk of logits; 0: the device's default (shared/model/head_plan.h)
    bool gpu;               // if dev is NULL: the device has memory of its own
    bool watch_gradients;   // grad_watch_read can find the tensor whose gradient is not finite
    struct recompute_options recompute;  // what the backward recomputes; ignored if forward_only
    // No training: no memory for gradients and losses, one set of activations for all blocks, and sequences may
    // be shorter than seq. Only model_set_tokens, model_forward (without want_loss) and model_row_logits may
    // then be called.
    bool forward_only;
};

struct model;

// Returns how the model's head cuts the logits into chunks (dev may be NULL).
struct head_plan model_head_plan(const struct model_options *o);
// bytes[] receives the bytes that the model will take, by class. Allocates nothing (dev and compute may be NULL).
void model_predict(const struct model_options *o, size_t bytes[MEM_CLASSES]);
struct model *model_create(const struct model_options *o);  // NULL after logging; copies *spec
void model_destroy(struct model **m);

// Sets T for the next micro-batches, at most the options' seq. The memory stays that of the largest T.
void model_set_seq(struct model *m, int64_t seq);
// tokens, targets: host (B,T). A target below 0 is ignored: it counts in no loss and no gradient. The copies
// are enqueued, so keep both until an event recorded after this call has passed. For a device with its own
// memory they should be page-locked (MEM_HOST), because the host waits for copies of other memory.
// loss_scale_over_tokens multiplies the gradient of the summed loss: loss_scale / (tokens over which the mean
// is taken). zero_loss: start the step's loss sum at 0.
void model_set_batch(struct model *m, const int32_t *tokens, const int32_t *targets,
                     float loss_scale_over_tokens, bool zero_loss);
// forward_only: host tokens (B,T), T = seq, at most the options' seq; keep them as above.
void model_set_tokens(struct model *m, const int32_t *tokens, int64_t seq);
// Forward of unit u. tied: unit 0's view if u is the head of a tied model and want_loss, else NULL.
void model_forward(struct model *m, int u, const struct unit_view *view, const struct unit_view *tied,
                   bool want_loss);
void model_backward(struct model *m, int u, const struct unit_view *view, const struct unit_view *tied);
// The sum of token losses since the last zero_loss. model_loss_on_device returns its address in device memory,
// where compute's work updates it. model_loss_sum returns its value; the host waits (NAN if the stream has
// failed).
const double *model_loss_on_device(const struct model *m);
double model_loss_sum(const struct model *m);
// Logits (V) of one row, 0 <= row < B*T, as fp32, from the final norm of the last forward. Blocks. Returns 0 or
// -1.
int model_row_logits(struct model *m, const struct unit_view *head, const struct unit_view *tied, int64_t row,
                     float *out);

// ---------------------------------------------------------------- gradients that are not finite
// Finds the tensor whose gradient is not finite, for the message of a run that ends because of it. Each tensor has a count
// of the non-finite values in this rank's own gradients, before any sum over ranks. The loop watches only steps in which
// the next overflow would end the run; other steps cost only the memory of the counts (class workspace, in a model
// created with watch_gradients).

// Counts the non-finite values of unit u's gradient. Call it after model_backward of unit u and before the gradient is
// used; it only enqueues. grad: as model_backward left it. micro: the step's micro-batch, 0 for the first.
void grad_watch_unit(struct model *m, int u, const void *grad, int micro);

struct grad_watched {
    int64_t tensor;    // the first tensor in logical order with non-finite values; -1: none
    const char *name;  // of that tensor, in the layout
    int64_t elements;  // how many non-finite values it had, over all micro-batches of the step
};
// Reads the counts of the last watched step; the host waits. Returns 0, or -1 if the device has failed.
int grad_watch_read(struct model *m, struct grad_watched *out);
// Returns the name of a tensor by its index in logical order.
const char *grad_watch_name(const struct layout *l, int64_t tensor);

#endif
