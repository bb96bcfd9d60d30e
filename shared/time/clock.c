#include "shared/time/clock.h"

#include <stdio.h>
#include <unistd.h>
#include <xxhash.h>

struct clock_offset clock_offset_unknown(void) {
    return (struct clock_offset){INT64_MIN / 4, INT64_MAX / 4};
}

void clock_offset_learn(struct clock_offset *o, struct clock_barrier own, struct clock_barrier reference) {
    int64_t low = reference.before - own.after, high = reference.after - own.before;
    if (low > o->low) o->low = low;
    if (high < o->high) o->high = high;
}

int64_t clock_offset_ns(const struct clock_offset *o) { return o->low + (o->high - o->low) / 2; }

// If clocks drift between two barriers, low may exceed high by the drift.
int64_t clock_offset_error_ns(const struct clock_offset *o) {
    int64_t width = o->high - o->low;
    return (width < 0 ? -width : width) / 2;
}

uint64_t clock_host(void) {
    char id[256] = "";
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "r");
    size_t n = f ? fread(id, 1, sizeof id, f) : 0;
    if (f) fclose(f);
    if (n == 0 && gethostname(id, sizeof id) == 0)
        while (n < sizeof id && id[n]) n++;
    return XXH64(id, n, 0);
}
