// Polls the clock until the time is over.
#include "kernels/queue/queue.h"
#include "kernels/ref/ref.h"

void ref_busy(const struct busy_args *a) {
    int64_t now = now_ns(), since = a->clock[0] ? now - a->clock[0] : 0;
    a->clock[1] = now + a->ns + (int64_t)(a->factor * (double)since);
    while (now < a->clock[1]) now = now_ns();
    a->clock[0] = now;
}
