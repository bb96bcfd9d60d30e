#include "shared/core/trouble.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/exact_math.h"
#include "shared/core/error.h"
#include "shared/core/numbers.h"
#include "shared/core/text.h"

#define FACTOR_MAX 1e6
#define MS_MAX     86400e3  // a day

// High words of the counters: a stream per kind. The rank is in the low bits.
#define STRAGGLE_STREAM 0x7374726100000000ULL
#define MICRO_STREAM    0x6d69637200000000ULL
#define DELAY_STREAM    0x64656c6100000000ULL

static const char *const distribution_names[TROUBLE_DISTRIBUTIONS] = {"constant", "exponential", "pareto",
                                                                      "lognormal"};
static const char *const kind_forms[] = {"RANK:FACTOR[:PROBABILITY] or RANK:DISTRIBUTION:MEAN",
                                         "RANK:DISTRIBUTION:MS"};

// ---------------------------------------------------------------- reading
// Parses a number that ends at ',', ':' or the end of the text. Returns the position after it, or NULL if there is
// none.
static const char *read_number(const char *at, double *out) {
    char *end;
    if (!((*at >= '0' && *at <= '9') || *at == '.')) return NULL;
    *out = strtod(at, &end);
    return end > at && isfinite(*out) && (!*end || *end == ',' || *end == ':') ? end : NULL;
}

static const char *read_rank(const char *at, int *rank) {
    double x;
    *rank = TROUBLE_EACH_RANK;
    if (at[0] == '*') return at[1] == ':' ? at + 2 : NULL;
    const char *end = read_number(at, &x);
    if (!end || *end != ':' || x != floor(x) || x > 1 << 30) return NULL;
    *rank = (int)x;
    return end + 1;
}

// Parses DISTRIBUTION:MEAN.
static const char *read_draw(const char *at, struct trouble_draw *draw) {
    for (int d = 0; d < TROUBLE_DISTRIBUTIONS; d++) {
        size_t n = strlen(distribution_names[d]);
        if (strncmp(at, distribution_names[d], n) != 0 || at[n] != ':') continue;
        draw->distribution = (enum trouble_distribution)d;
        const char *end = read_number(at + n + 1, &draw->mean);
        return end && *end != ':' ? end : NULL;
    }
    return NULL;
}

static const char *read_straggle(const char *at, struct trouble *t) {
    const char *end = read_number(at, &t->factor);
    if (!end) return read_draw(at, &t->more);
    if (*end == ':') end = read_number(end + 1, &t->probability);
    return end && *end != ':' ? end : NULL;
}

// Parses one item of a list. Returns the position after it, or NULL if it has another form.
static const char *read_item(enum trouble_kind kind, const char *at, struct trouble *t) {
    *t = (struct trouble){.factor = 1, .probability = 1};
    at = read_rank(at, &t->rank);
    if (!at) return NULL;
    return kind == TROUBLE_STRAGGLE ? read_straggle(at, t) : read_draw(at, &t->delay);
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
    else if (t->more.mean > FACTOR_MAX)
        wrong = "MEAN must be from 0 (as fast as it can) to 1000000";
    else if (t->delay.mean > MS_MAX)
        wrong = "MS must be from 0 to 86400000 milliseconds";
    if (wrong) snprintf(why, TROUBLE_WHY_MAX, "%s", wrong);
    return wrong ? -1 : 0;
}

// named: (ranks), true for each rank that the list has named so far.
static int check_list(enum trouble_kind kind, const char *list, int ranks, bool *named,
                      char why[TROUBLE_WHY_MAX]) {
    for (const char *at = list; at;) {
        struct trouble t;
        char wrong[TROUBLE_WHY_MAX];
        int length = (int)strcspn(at, ",");
        const char *end = read_item(kind, at, &t);
        if (!end) {
            snprintf(why, TROUBLE_WHY_MAX, "\"%.*s\": expected %s%s", length < 60 ? length : 60, at,
                     kind_forms[kind],
                     ", RANK a number or *, DISTRIBUTION constant, exponential, pareto or lognormal");
            return -1;
        }
        int rc = check_item(kind, &t, ranks, wrong);
        bool each = t.rank == TROUBLE_EACH_RANK;
        for (int r = each ? 0 : t.rank; !rc && r < (each ? ranks : t.rank + 1); r++) {
            if (named[r]) snprintf(wrong, sizeof wrong, "rank %d is there twice", r);
            if (named[r]) rc = -1;
            named[r] = true;
        }
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

// Finds the item of a list for a rank.
static bool find_item(enum trouble_kind kind, const char *list, int rank, struct trouble *item) {
    for (const char *at = list; at; at = next_item(at)) {
        if (!(at = read_item(kind, at, item))) break;
        if (item->rank == rank || item->rank == TROUBLE_EACH_RANK) return true;
    }
    return false;
}

struct trouble trouble_of(const char *straggle, const char *delay, int rank, uint64_t seed) {
    struct trouble t = {.factor = 1, .probability = 1}, item;
    if (find_item(TROUBLE_STRAGGLE, straggle, rank, &item)) t = item;
    if (find_item(TROUBLE_DELAY, delay, rank, &item)) t.delay = item.delay;
    t.rank = rank;
    t.seed = seed;
    return t;
}

// ---------------------------------------------------------------- drawing
struct uniform {
    double u, v;  // in (0, 1], multiples of 2^-53
};
static double uniform_of(uint32_t low, uint32_t high) {
    return ((double)(((uint64_t)high << 32 | low) >> 11) + 1.0) * 0x1p-53;
}
static struct uniform uniform(const struct trouble *t, uint64_t key, int64_t step, uint64_t stream) {
    struct philox_out r = philox(key, (uint64_t)step, stream | (uint32_t)t->rank);
    return (struct uniform){uniform_of(r.v[0], r.v[1]), uniform_of(r.v[2], r.v[3])};
}

static double draw(const struct trouble_draw *d, struct uniform x) {
    switch (d->distribution) {
        case TROUBLE_EXPONENTIAL:
            return -d->mean * exact_log(x.u);
        case TROUBLE_PARETO:
            return d->mean * 0.5 / sqrt(x.u);
        case TROUBLE_LOGNORMAL:  // z: Box & Muller 1958
            return d->mean * exact_exp(sqrt(-2 * exact_log(x.u)) * exact_cosine(2 * M_PI * x.v) - 0.5);
        default:
            return d->mean;
    }
}

// Each micro-batch has a key of its own, because the counter holds the step, which may reach 2^53.
double trouble_factor(const struct trouble *t, int64_t step, int64_t micro) {
    if (t->more.mean > 0) {
        struct philox_out key = philox(t->seed, (uint64_t)micro, MICRO_STREAM);
        return 1 + draw(&t->more, uniform(t, (uint64_t)key.v[1] << 32 | key.v[0], step, STRAGGLE_STREAM));
    }
    if (t->factor <= 1) return 1;
    return uniform(t, t->seed, step, STRAGGLE_STREAM).u <= t->probability ? t->factor : 1;
}

int64_t trouble_delay_ns(const struct trouble *t, int64_t step) {
    if (!(t->delay.mean > 0)) return 0;
    return (int64_t)(1e6 * draw(&t->delay, uniform(t, t->seed, step, DELAY_STREAM)));
}

// ---------------------------------------------------------------- printed text
char *trouble_text(const char *straggle, const char *delay) {
    static const char *const words[] = {"", " on average (exponential)", " on average (Pareto, shape 2)",
                                        " on average (lognormal)"};
    char *text = NULL, who[32];
    struct trouble t;
    for (int kind = TROUBLE_STRAGGLE; kind <= TROUBLE_DELAY; kind++)
        for (const char *at = kind == TROUBLE_STRAGGLE ? straggle : delay; at; at = next_item(at)) {
            if (!(at = read_item((enum trouble_kind)kind, at, &t))) break;
            snprintf(who, sizeof who, t.rank == TROUBLE_EACH_RANK ? "each rank" : "rank %d", t.rank);
            const struct trouble_draw *d = kind == TROUBLE_DELAY ? &t.delay : &t.more;
            text_add(&text, "%s%s computes ", text ? "; " : "", who);
            if (kind == TROUBLE_DELAY)
                text_add(&text, "%g ms longer%s in each step", d->mean, words[d->distribution]);
            else if (d->mean > 0)
                text_add(&text, "%g times as long%s in each micro-batch", 1 + d->mean,
                         words[d->distribution]);
            else if (t.probability < 1)
                text_add(&text, "%g times as long in a share of %g of its steps", t.factor, t.probability);
            else
                text_add(&text, "%g times as long in all steps", t.factor);
        }
    return text;
}

// ---------------------------------------------------------------- message fault
#define DELAY_MS_MAX 10000.0

// Parses "key=number" at *at, and moves *at after it and its comma. Returns false if the text has another form.
static bool read_fault_item(const char **at, const char *key, double *out) {
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
        while (k < 5 && !read_fault_item(&at, keys[k], &values[k])) k++;
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
        "of the messages a share of %g is lost, %g sent twice, %g out of order; each arrives %g ms late",
        f.drop, f.dup, f.reorder, f.delay_ms);
}

static double unit(uint32_t x) { return (double)x * 0x1p-32; }

struct message_faults message_faults_of(const struct message_fault *f, uint64_t socket, uint64_t n) {
    struct philox_out a = philox(f->seed, 2 * n, socket), b = philox(f->seed, 2 * n + 1, socket);
    double most_s = (FAULT_LATE_MS + 2 * f->delay_ms) * 1e-3, late_s = f->delay_ms * 1e-3;
    struct message_faults x = {.lost = unit(a.v[0]) < f->drop,
                               .twice = unit(a.v[1]) < f->dup,
                               .overtaken = unit(a.v[2]) < f->reorder};
    x.late_s = late_s + (x.overtaken ? unit(a.v[3]) * most_s : 0);
    x.copy_late_s = late_s + unit(b.v[0]) * most_s;
    return x;
}
