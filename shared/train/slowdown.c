#include "shared/train/slowdown.h"

#include <stdlib.h>

#include "shared/core/error.h"
#include "shared/core/trouble.h"

#define CLOCK_BYTES (2 * sizeof(int64_t))

struct slowdown {
    const struct config *c;
    struct device *dev;
    struct stream *compute;
    int64_t *clock;          // (2) device memory
    struct trouble trouble;  // this rank's configured slowdown
    double factor;           // factor of the current micro-batch
    int64_t delay_ns;        // not yet applied in this step
};

static bool wanted(const struct config *c) { return c->straggle || c->delay; }

void slowdown_predict(const struct config *c, size_t bytes[MEM_CLASSES]) {
    if (wanted(c)) bytes[MEM_WORKSPACE] += dev_round(CLOCK_BYTES);
}

int slowdown_create(const struct config *c, struct device *dev, struct stream *compute,
                    struct slowdown **out) {
    *out = NULL;
    if (!wanted(c)) return 0;
    struct slowdown *h = xcalloc(1, sizeof *h);
    *h = (struct slowdown){.c = c, .dev = dev, .compute = compute, .factor = 1};
    h->clock = dev_alloc(dev, MEM_WORKSPACE, CLOCK_BYTES);
    if (!h->clock) {
        free(h);
        return fail("out of memory for --straggle and --delay: %s", dev_error(dev));
    }
    *out = h;
    return 0;
}

void slowdown_destroy(struct slowdown **at) {
    struct slowdown *h = *at;
    if (!h) return;
    dev_free(h->dev, MEM_WORKSPACE, h->clock, CLOCK_BYTES);
    free(h);
    *at = NULL;
}

static void compute_longer(const struct slowdown *h, int64_t ns, double factor) {
    op_busy(h->compute, &(struct busy_args){.clock = h->clock, .ns = ns, .factor = factor});
}

void slowdown_micro(struct slowdown *h, int rank, int64_t step, int64_t micro) {
    if (!h) return;
    if (micro == 0) h->trouble = trouble_of(h->c->straggle, h->c->delay, rank, h->c->seed);
    h->factor = trouble_factor(&h->trouble, step, micro);
    h->delay_ns = micro == 0 ? trouble_delay_ns(&h->trouble, step) : 0;
}

void slowdown_before(struct slowdown *h) {
    if (!h || (h->factor <= 1 && h->delay_ns <= 0)) return;
    compute_longer(h, h->delay_ns, 0);  // also sets the start time for slowdown_after
    h->delay_ns = 0;
}

void slowdown_after(struct slowdown *h) {
    if (h && h->factor > 1) compute_longer(h, 0, h->factor - 1);
}
