#include "shared/state/identity_agree.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/core/error.h"

#define EVERYTHING (IDENTITY_TRAJECTORY | IDENTITY_RUN | IDENTITY_LOCAL)

// A hash is sent as sums of its 16-bit pieces and of their squares. With up to 2^16 ranks these are below 2^32 and
// 2^48, so exact as doubles. N times the sum of squares equals the square of the sum exactly when all pieces are
// equal (Cauchy-Schwarz).
#define PIECES 4

static int hashes_equal(struct topology *t, uint64_t hash, bool *equal) {
    double sums[2 * PIECES];
    for (int i = 0; i < PIECES; i++) {
        double piece = (double)(hash >> 16 * i & 0xffff);
        sums[i] = piece;
        sums[PIECES + i] = piece * piece;
    }
    if (topology_sum(t, sums, 2 * PIECES)) return -1;
    *equal = true;
    for (int i = 0; i < PIECES; i++)
        *equal &= (unsigned __int128)t->size * (uint64_t)sums[PIECES + i] ==
                  (unsigned __int128)(uint64_t)sums[i] * (uint64_t)sums[i];
    return 0;
}

// Six bytes form an integer that a double holds exactly.
#define BYTES 6

// Sends the text of the one rank that gives one (others pass NULL) to all (malloc'd). Returns NULL if a sum failed.
static char *spread(struct topology *t, const char *text) {
    double length = text ? (double)strlen(text) : 0;
    if (topology_sum(t, &length, 1)) return NULL;
    size_t bytes = (size_t)length;
    int count = (int)((bytes + BYTES - 1) / BYTES);
    double *values = xcalloc((unsigned long)count + 1, sizeof *values);
    char *all = xcalloc((unsigned long)(count + 1) * BYTES, 1);
    for (size_t i = 0; text && i < bytes; i++)
        values[i / BYTES] += (double)((uint64_t)(unsigned char)text[i] << 8 * (i % BYTES));
    int rc = topology_sum(t, values, count);
    for (size_t i = 0; i < bytes && !rc; i++)
        all[i] = (char)((uint64_t)values[i / BYTES] >> 8 * (i % BYTES) & 0xff);
    free(values);
    if (!rc) return all;
    free(all);
    return NULL;
}

// *out receives how this rank differs from rank 0 (malloc'd), or NULL if it does not. Returns -1 if a sum failed.
static int compare_with_first(struct topology *t, const struct identity *i, char **out) {
    char *text = t->rank == 0 ? identity_text(i) : NULL, name[32];
    char *first = spread(t, text);
    free(text);
    *out = NULL;
    if (!first) return -1;
    struct identity *of_first = identity_parse(first);
    snprintf(name, sizeof name, "worker %d", t->rank);
    if (of_first && t->rank > 0)
        *out = identity_disagreement((struct identity_side){name, i},
                                     (struct identity_side){"worker 0", of_first});
    identity_destroy(&of_first);
    free(first);
    return 0;
}

// *first receives the lowest rank that differs, *count how many differ.
static int find_others(struct topology *t, bool differs, int *first, int *count) {
    double *who = xcalloc((unsigned long)t->size, sizeof *who);
    who[t->rank] = differs;
    int rc = topology_sum(t, who, t->size);
    *first = *count = 0;
    for (int r = t->size - 1; r > 0 && !rc; r--) {
        if (who[r] == 0) continue;
        *first = r;
        ++*count;
    }
    free(who);
    return rc;
}

static int name_difference(struct topology *t, const struct identity *i) {
    char *own, more[48] = "";
    int first, count;
    if (compare_with_first(t, i, &own)) return -1;
    int rc = find_others(t, own != NULL, &first, &count);
    if (!rc && count) {
        char *words = spread(t, t->rank == first ? own : NULL);
        if (count > 1) snprintf(more, sizeof more, " (and %d more workers differ)", count - 1);
        if (words) {
            if (t->rank > 0 && !own) error_quiet(1);
            fail("%s%s", own ? own : words, own ? "" : more);
        }
        rc = -1;
        free(words);
    }
    free(own);
    return rc;
}

int identity_agree(struct topology *t, const struct identity *i) {
    bool equal;
    if (t->size < 2) return 0;
    if (hashes_equal(t, identity_hash(i, EVERYTHING), &equal)) return -1;
    return equal ? 0 : name_difference(t, i);
}
