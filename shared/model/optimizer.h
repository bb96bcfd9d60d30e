// The update, shared by every topology: an optimizer over any range of a unit. No rank, no message.
//
// An optimizer is a row of `optimizers` in optimizer.c. Its states are arrays `state[]`, which the local topology, the
// ring's ranks or the star's servers own; the row has their number:
//
//     optimizer_carve      takes row->states arrays of fp32
//     optimizer_bytes      their bytes per parameter, for predictions
//     optimizer_launch     enqueues the update on a stream
//     optimizer_apply      updates at once, on the host
//
// A new optimizer needs a row in optimizer.c and its update in kernels/update.h, unless an existing update fits. Each
// setting that no other optimizer has needs a member of optimizer_config, and a row in shared/config/config_keys.c.
#ifndef STARRING_SHARED_MODEL_OPTIMIZER_H
#define STARRING_SHARED_MODEL_OPTIMIZER_H

#include "kernels/backend.h"
#include "shared/core/arena.h"
#include "shared/core/unit.h"
#include "shared/model/schedule.h"

#define OPTIMIZER_STATES_MAX 2
#define OPTIMIZER_PARAMS_MAX 8

struct optimizer;

// The settings. An optimizer reads those that its row lists in `params`; the others are zero.
struct optimizer_config {
    const struct optimizer *row;
    float lr, beta1, beta2, eps, weight_decay;
    bool l2_mode;             // "adam_w_mode": false
    bool no_bias_correction;  // "bias_correction": false
    float momentum, dampening;
    float alpha;
    bool nesterov;
    // SCHEDULE_ONE_CYCLE with cycle_momentum sets the betas; otherwise SCHEDULE_NONE
    struct schedule_config cycle;
    int64_t freeze_step;  // updates before the variance is frozen; 0: never
};

// Range [begin, end) of a unit, with buffers that hold only this range (element 0 = begin).
struct update_range {
    const struct unit *unit;
    int64_t begin, end;                  // elements of the unit; may include gaps and padding
    float *master;                       // (end - begin)
    float *state[OPTIMIZER_STATES_MAX];  // (end - begin) each; row->states of them are used
    void *weight;                        // (end - begin) of dtype, or NULL
    const void *grad;                    // (end - begin) of dtype
    // OneBitAdam after freeze_step: the encoded momentum that all ranks have agreed on; NULL: it is computed from grad.
    const struct onebit_block *momentum;
    enum dtype dtype;
};

struct update_step {
    float lr;
    int64_t t;  // number of this update, from 1
    const struct update_scalars *scalars;
};

struct optimizer {
    const char *name;      // "optimizer.type"
    const char *textbook;  // its name in the legends of memory formulas
    int states;            // fp32 values per parameter, besides the master
    struct {
        const char *key, *value;
    } params[OPTIMIZER_PARAMS_MAX];  // its keys below "optimizer.params", and their defaults as JSON
    bool decoupled;                  // "adam_w_mode" is always true
    const struct optimizer *moving;  // the row that is used instead if momentum > 0; NULL: this one
    bool onebit;  // after freeze_step, ranks exchange one bit per element of their momenta (decentral/zero)
    enum op op;   // the update
    void (*describe)(char *text, size_t size, const struct optimizer_config *c);  // prints the settings
};
extern const struct optimizer optimizers[];                                 // ends with a row without a name
const struct optimizer *optimizer_find(const char *name);                   // any case; NULL: unknown name
const char *optimizer_names(char text[128]);                                // "A, B"; fills and returns text
const char *optimizer_default(const struct optimizer *o, const char *key);  // NULL: not one of its keys

// Returns beta1 of this update: the configured one, or OneCycle's.
float optimizer_beta1(const struct optimizer_config *c, const struct update_step *step);

// Launches one operation for the whole range. Neighbouring tensors of equal weight decay form one group of the operation.
// A range may begin and end anywhere, also inside a tensor, a gap or the padding. A gap belongs to the group before it: it
// is zero, and stays zero with any decay. An empty range launches nothing.
void optimizer_launch(struct stream *s, const struct optimizer_config *c, const struct update_range *r,
                      const struct update_step *step);
// Does the same at once, on `threads` threads of the host (servers use it). Returns 0, or -1 after fail().
int optimizer_apply(const struct optimizer_config *c, const struct update_range *r,
                    const struct update_step *step, int threads);

// Takes the states of n elements from the arena.
void optimizer_carve(struct arena *a, const struct optimizer *o, int64_t n, float **state);
// Returns the bytes per parameter of the states. own_master: and of an fp32 master, if the weights are not fp32 themselves.
size_t optimizer_bytes(const struct optimizer *o, bool own_master);

// p[i] += factor * x[i] in fp32, i < n: a step of plain SGD. scalars: in device memory, with scale 1 and no
// skip.
void optimizer_add_scaled(struct stream *s, const struct update_scalars *scalars, float *p, float factor,
                          const float *x, int64_t n);

#endif
