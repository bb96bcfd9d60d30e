#include "shared/core/message_fault.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/core/error.h"
#include "shared/core/rng.h"

#define DELAY_MS_MAX 10000.0

// Parses "key=number" at *at, and moves *at after it and its comma. Returns false if the text has another form.
static bool read_item(const char **at, const char *key, double *out) {
    size_t n = strlen(key);
    char *end;
    if (strncmp(*at, key, n) != 0 || (*at)[n] != '=') return false;
    const char *number = *at + n + 1;
    if (!((*number >= '0' && *number <= '9') || *number == '.')) return false;
    *out = strtod(number, &end);
    if (!isfinite(*out) || (*end && *end != ',') || (*end == ',' && !end[1])) return false;
    *at = *end ? end + 1 : end;
    return true;
}

int message_fault_parse(const char *text, uint64_t seed, struct message_fault *out, char why[FAULT_WHY_MAX]) {
    static const char *const keys[] = {"drop", "dup", "reorder", "delay", "seed"};
    double values[5] = {0};
    bool seen[5] = {false};
    *out = (struct message_fault){.seed = seed};
    for (const char *at = text; at && (at == text || *at);) {
        int length = (int)strcspn(at, ","), k = 0;
        const char *item = at;
        while (k < 5 && !read_item(&at, keys[k], &values[k])) k++;
        const char *wrong = NULL;
        if (k == 5)
            wrong = "expected drop=P, dup=P, reorder=P, delay=MS or seed=S";
        else if (seen[k])
            wrong = "it is there twice";
        else if (k < 3 && !(values[k] < 1))
            wrong = "a share is from 0 to below 1";
        else if (k == 3 && values[k] > DELAY_MS_MAX)
            wrong = "MS must be from 0 to 10000 milliseconds";
        else if (k == 4 && (values[k] != floor(values[k]) || values[k] > 0x1p53))
            wrong = "a seed is a whole number";
        if (wrong) {
            snprintf(why, FAULT_WHY_MAX, "\"%.*s\": %s", length < 60 ? length : 60, item, wrong);
            return -1;
        }
        seen[k] = true;
    }
    out->drop = values[0];
    out->dup = values[1];
    out->reorder = values[2];
    out->delay_ms = values[3];
    if (seen[4]) out->seed = (uint64_t)values[4];
    return 0;
}

char *message_fault_text(const char *text) {
    struct message_fault f;
    char why[FAULT_WHY_MAX];
    if (!text || message_fault_parse(text, 0, &f, why) != 0 || !message_fault_any(&f)) return NULL;
    return xasprintf(
        "of the messages a share of %g is lost, %g comes twice, %g out of order; each %g ms late", f.drop,
        f.dup, f.reorder, f.delay_ms);
}

static double unit(uint32_t x) { return (double)x * 0x1p-32; }

struct message_fate message_fate_of(const struct message_fault *f, uint64_t socket, uint64_t n) {
    struct philox_out a = philox(f->seed, 2 * n, socket), b = philox(f->seed, 2 * n + 1, socket);
    double most_s = (FAULT_LATE_MS + 2 * f->delay_ms) * 1e-3, late_s = f->delay_ms * 1e-3;
    struct message_fate x = {.lost = unit(a.v[0]) < f->drop,
                             .twice = unit(a.v[1]) < f->dup,
                             .overtaken = unit(a.v[2]) < f->reorder};
    x.late_s = late_s + (x.overtaken ? unit(a.v[3]) * most_s : 0);
    x.copy_late_s = late_s + unit(b.v[0]) * most_s;
    return x;
}
