#include "shared/core/trouble.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/exact_math.h"
#include "shared/core/error.h"
#include "shared/core/rng.h"

#define FACTOR_MAX 1e6
#define MS_MAX     86400e3  // a day

// Counters' high words: a stream for each kind, an element for each rank below.
#define STRAGGLE_STREAM 0x7374726100000000ULL
#define DELAY_STREAM    0x64656c6100000000ULL

static const char *const distribution_names[DELAY_DISTRIBUTIONS] = {"constant", "exponential", "pareto"};
static const char *const kind_forms[] = {"RANK:FACTOR[:PROBABILITY]", "RANK:DISTRIBUTION:MS"};

// ---------------------------------------------------------------- reading
// A number that ends at `end` (',', ':' or the text's). NULL: it is none; else behind it.
static const char *read_number(const char *at, double *out) {
    char *end;
    if (!((*at >= '0' && *at <= '9') || *at == '.')) return NULL;
    *out = strtod(at, &end);
    return end > at && isfinite(*out) && (!*end || *end == ',' || *end == ':') ? end : NULL;
}

static const char *read_rank(const char *at, int *rank) {
    double x;
    const char *end = read_number(at, &x);
    if (!end || *end != ':' || x != floor(x) || x > 1 << 30) return NULL;
    *rank = (int)x;
    return end + 1;
}

static const char *read_straggle(const char *at, struct trouble *t) {
    const char *end = read_number(at, &t->factor);
    t->probability = 1;
    if (end && *end == ':') end = read_number(end + 1, &t->probability);
    return end && *end != ':' ? end : NULL;
}

static const char *read_delay(const char *at, struct trouble *t) {
    for (int d = 0; d < DELAY_DISTRIBUTIONS; d++) {
        size_t n = strlen(distribution_names[d]);
        if (strncmp(at, distribution_names[d], n) != 0 || at[n] != ':') continue;
        t->distribution = (enum trouble_distribution)d;
        const char *end = read_number(at + n + 1, &t->mean_ms);
        return end && *end != ':' ? end : NULL;
    }
    return NULL;
}

// One item of a list; NULL: it has another form; else behind it.
static const char *read_item(enum trouble_kind kind, const char *at, struct trouble *t) {
    at = read_rank(at, &t->rank);
    if (!at) return NULL;
    return kind == TROUBLE_STRAGGLE ? read_straggle(at, t) : read_delay(at, t);
}

static const char *next_item(const char *end) { return *end == ',' ? end + 1 : NULL; }

static int check_item(enum trouble_kind kind, const struct trouble *t, int ranks, char why[TROUBLE_WHY_MAX]) {
    const char *wrong = NULL;
    if (t->rank >= ranks) {
        snprintf(why, TROUBLE_WHY_MAX,
                 ranks > 1 ? "there is no rank %d: the ranks that compute are 0 to %d"
                           : "there is no rank %d: rank 0 alone computes",
                 t->rank, ranks - 1);
        return -1;
    }
    if (kind == TROUBLE_STRAGGLE && !(t->factor >= 1 && t->factor <= FACTOR_MAX))
        wrong = "FACTOR must be from 1 (as fast as it can) to 1000000";
    else if (kind == TROUBLE_STRAGGLE && !(t->probability > 0 && t->probability <= 1))
        wrong = "PROBABILITY must be above 0 and at most 1";
    else if (kind == TROUBLE_DELAY && !(t->mean_ms >= 0 && t->mean_ms <= MS_MAX))
        wrong = "MS must be from 0 to 86400000 milliseconds";
    if (wrong) snprintf(why, TROUBLE_WHY_MAX, "%s", wrong);
    return wrong ? -1 : 0;
}

// named (ranks): who is in the list so far.
static int check_list(enum trouble_kind kind, const char *list, int ranks, bool *named,
                      char why[TROUBLE_WHY_MAX]) {
    for (const char *at = list; at;) {
        struct trouble t = {.rank = 0};
        char wrong[TROUBLE_WHY_MAX];
        int length = (int)strcspn(at, ",");
        const char *end = read_item(kind, at, &t);
        if (!end) {
            snprintf(why, TROUBLE_WHY_MAX, "\"%.*s\": expected %s%s", length < 60 ? length : 60, at,
                     kind_forms[kind],
                     kind == TROUBLE_DELAY ? " with constant, exponential or pareto for DISTRIBUTION" : "");
            return -1;
        }
        int rc = check_item(kind, &t, ranks, wrong);
        if (!rc && named[t.rank]) {
            snprintf(wrong, sizeof wrong, "rank %d is there twice", t.rank);
            rc = -1;
        }
        if (!rc) named[t.rank] = true;
        if (rc) {
            snprintf(why, TROUBLE_WHY_MAX, "\"%.*s\": %.160s", length < 60 ? length : 60, at, wrong);
            return -1;
        }
        at = next_item(end);
    }
    return 0;
}

int trouble_check(enum trouble_kind kind, const char *list, int ranks, char why[TROUBLE_WHY_MAX]) {
    bool *named = xcalloc((unsigned long)ranks, sizeof *named);
    int rc = check_list(kind, list, ranks, named, why);
    free(named);
    return rc;
}

struct trouble trouble_of(const char *straggle, const char *delay, int rank, uint64_t seed) {
    struct trouble t = {.rank = rank, .seed = seed, .factor = 1, .probability = 1}, item = t;
    for (const char *at = straggle; at; at = next_item(at)) {
        if (!(at = read_item(TROUBLE_STRAGGLE, at, &item))) break;
        if (item.rank != rank) continue;
        t.factor = item.factor;
        t.probability = item.probability;
    }
    for (const char *at = delay; at; at = next_item(at)) {
        if (!(at = read_item(TROUBLE_DELAY, at, &item))) break;
        if (item.rank != rank) continue;
        t.distribution = item.distribution;
        t.mean_ms = item.mean_ms;
    }
    return t;
}

// ---------------------------------------------------------------- drawing
// Uniform in (0, 1], a multiple of 2^-53.
static double draw(const struct trouble *t, int64_t step, uint64_t stream) {
    struct philox_out r = philox(t->seed, (uint64_t)step, stream | (uint32_t)t->rank);
    uint64_t x = ((uint64_t)r.v[1] << 32 | r.v[0]) >> 11;
    return ((double)x + 1.0) * 0x1p-53;
}

double trouble_factor(const struct trouble *t, int64_t step) {
    if (t->factor <= 1) return 1;
    return draw(t, step, STRAGGLE_STREAM) <= t->probability ? t->factor : 1;
}

int64_t trouble_delay_ns(const struct trouble *t, int64_t step) {
    double ns = t->mean_ms * 1e6;
    if (ns <= 0) return 0;
    double u = draw(t, step, DELAY_STREAM);
    if (t->distribution == DELAY_EXPONENTIAL) ns *= -exact_log(u);
    if (t->distribution == DELAY_PARETO) ns *= 0.5 / sqrt(u);
    return (int64_t)ns;
}

// ---------------------------------------------------------------- for people
static char *append(char *text, char *more) {
    char *longer = xasprintf("%s%s%s", text ? text : "", text ? "; " : "", more);
    free(text);
    free(more);
    return longer;
}

char *trouble_text(const char *straggle, const char *delay) {
    static const char *const words[] = {"", " on average (exponential)", " on average (Pareto, shape 2)"};
    char *text = NULL;
    struct trouble t;
    for (const char *at = straggle; at; at = next_item(at)) {
        if (!(at = read_item(TROUBLE_STRAGGLE, at, &t))) break;
        char *share = t.probability < 1 ? xasprintf("a share of %g of its", t.probability) : xstrdup("all");
        text =
            append(text, xasprintf("rank %d computes %g times as long in %s steps", t.rank, t.factor, share));
        free(share);
    }
    for (const char *at = delay; at; at = next_item(at)) {
        if (!(at = read_item(TROUBLE_DELAY, at, &t))) break;
        text = append(text, xasprintf("rank %d computes %g ms longer%s in each step", t.rank, t.mean_ms,
                                      words[t.distribution]));
    }
    return text;
}
