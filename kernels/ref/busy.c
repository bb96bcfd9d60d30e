// Looks at the clock until a moment has come.
#include "kernels/queue/queue.h"
#include "kernels/ref/ref.h"

int ref_op_busy(int threads, const void *args, const char **why) {
    const struct busy_args *a = args;
    int64_t now = queue_now_ns(), since = a->clock[0] ? now - a->clock[0] : 0;
    (void)threads;
    (void)why;
    a->clock[1] = now + a->ns + (int64_t)(a->factor * (double)since);
    while (now < a->clock[1]) now = queue_now_ns();
    a->clock[0] = now;
    return 0;
}
