#include "ps/net/clock.h"

#include <stdio.h>
#include <string.h>

#include <xxhash.h>

// RFC 5905's frequency tolerance: the error that a measured offset gains per second.
#define DRIFT 15e-6

// Appends the contents of a small file of the kernel; nothing if it is missing.
static void append(char *text, size_t size, const char *path) {
    size_t at = strlen(text);
    FILE *f = fopen(path, "r");
    if (!f) return;
    at += fread(text + at, 1, size - at - 1, f);
    text[at] = 0;
    fclose(f);
}

// One boot of one kernel has one monotonic clock; a time namespace shifts it.
uint64_t ps_clock_id(void) {
    char text[512] = "";
    append(text, sizeof text, "/proc/sys/kernel/random/boot_id");
    if (!text[0]) return 0;
    append(text, sizeof text, "/proc/self/timens_offsets");
    return XXH64(text, strlen(text), 0);
}

struct ps_clock ps_clock_of(uint64_t own, uint64_t schedulers) {
    return (struct ps_clock){.other_host = own == 0 || own != schedulers};
}

int64_t ps_clock_error(const struct ps_clock *c, int64_t own_ns) {
    double age_ns = (double)(own_ns - c->sampled_ns);
    return c->samples ? c->error_ns + (int64_t)(DRIFT * (age_ns > 0 ? age_ns : -age_ns)) : 0;
}

void ps_clock_sample(struct ps_clock *c, int64_t sent_ns, int64_t there_ns, int64_t back_ns) {
    int64_t error_ns = (back_ns - sent_ns) / 2, known_ns = ps_clock_error(c, back_ns);
    if (!c->other_host || sent_ns <= 0 || there_ns <= 0 || back_ns < sent_ns) return;
    if (c->samples && known_ns > c->worst_ns) c->worst_ns = known_ns;
    if (!c->samples++ || error_ns <= known_ns) {
        c->offset_ns = (there_ns - sent_ns) / 2 + (there_ns - back_ns) / 2;
        c->error_ns = error_ns;
        c->sampled_ns = back_ns;
    }
    if (c->samples == 1) c->worst_ns = c->error_ns;
}

int64_t ps_clock_to_scheduler(const struct ps_clock *c, int64_t own_ns) {
    int64_t ns = own_ns + c->offset_ns;
    return own_ns > 0 && ns > 0 ? ns : 0;
}

int64_t ps_clock_from_scheduler(const struct ps_clock *c, int64_t ns) {
    int64_t own_ns = ns - c->offset_ns;
    return ns > 0 && own_ns > 0 ? own_ns : 0;
}
