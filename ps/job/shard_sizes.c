#include "ps/job/shard_sizes.h"

#include <stdlib.h>

#include "shared/core/error.h"

// ---------------------------------------------------------------- the sizes
static void count_keys(struct shard_sizes *s, int64_t elements, int64_t keys) {
    int i = 0;
    if (keys <= 0) return;
    while (i < s->classes && s->class[i].elements != elements) i++;
    if (i == s->classes) {
        s->class = xrealloc(s->class, (unsigned long)(s->classes + 1) * sizeof *s->class);
        s->class[s->classes++] = (struct size_class){elements, 0};
    }
    s->class[i].keys += keys;
}

// As cut_units of shard_map.c cuts it: so many grains make so many partitions, and grains % pieces of these have one
// grain more. The last one, which ends with the unit, is among these.
void shard_sizes_of_unit(const struct shard_cut *cut, int64_t n_pad, struct size_class out[3]) {
    n_pad /= cut->parts;
    int64_t grains = (n_pad + cut->grain - 1) / cut->grain;
    int64_t pieces = (grains + cut->most - 1) / cut->most, more = grains % pieces, least = grains / pieces;
    int64_t last = (least + (more > 0)) * cut->grain, missing = grains * cut->grain - n_pad;
    out[0] = (struct size_class){(least + 1) * cut->grain, more - (more > 0)};
    out[1] = (struct size_class){least * cut->grain, pieces - more - (more == 0)};
    out[2] = (struct size_class){last - missing, 1};
    for (int i = 0; i < 3; i++) out[i].keys *= cut->parts;
}

static int larger_first(const void *a, const void *b) {
    const struct size_class *x = a, *y = b;
    return x->elements > y->elements ? -1 : x->elements < y->elements;
}

static void count_all(struct shard_sizes *s, const struct layout *l) {
    for (int u = 0, same; u < l->count; u += same) {
        for (same = 1; u + same < l->count && l->units[u + same].n_pad == l->units[u].n_pad;) same++;
        struct size_class of[3];
        shard_sizes_of_unit(&s->cut, l->units[u].n_pad, of);
        for (int i = 0; i < 3; i++) count_keys(s, of[i].elements, (int64_t)same * of[i].keys);
    }
    qsort(s->class, (size_t)s->classes, sizeof *s->class, larger_first);
}

// ---------------------------------------------------------------- how many keys each shard gets
// Returns how many keys of `size` elements a shard takes while its load is below `level`. Each key that it takes adds `size`.
static int64_t keys_below(const struct shard_group *g, int64_t size, int64_t level) {
    return level > g->elements ? (level - g->elements + size - 1) / size : 0;
}

// Whether all groups together take at most n keys below the level.
static bool takes_at_most(const struct shard_sizes *s, int64_t size, int64_t level, int64_t n) {
    for (int g = 0; g < s->groups; g++) {
        int64_t each = keys_below(&s->group[g], size, level);
        if (each > n / s->group[g].count) return false;
        n -= each * s->group[g].count;
    }
    return true;
}

// The first `count` shards of group g become a group of their own before the rest.
static void split(struct shard_sizes *s, int g, int count) {
    size_t row = (size_t)s->classes;
    for (int i = s->groups++; i > g; i--) {
        s->group[i] = s->group[i - 1];
        for (size_t k = 0; k < row; k++) s->keys[(size_t)i * row + k] = s->keys[(size_t)(i - 1) * row + k];
    }
    s->group[g].count = count;
    s->group[g + 1].first += count;
    s->group[g + 1].count -= count;
}

// Gives the keys of one size to shards. Each key goes to the least loaded shard, the first of several: in the order of
// (load, shard).
static void deal(struct shard_sizes *s, int class) {
    int64_t n = s->class[class].keys, size = s->class[class].elements, low = INT64_MAX, high = 0;
    for (int g = 0; g < s->groups; g++) {
        if (s->group[g].elements < low) low = s->group[g].elements;
        if (s->group[g].elements > high) high = s->group[g].elements;
    }
    // The highest level below which at most n keys are taken, between low (none) and high (more than n).
    high += (n + 1) * size;
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (takes_at_most(s, size, middle, n))
            low = middle;
        else
            high = middle;
    }
    for (int g = 0; g < s->groups; g++) n -= keys_below(&s->group[g], size, low) * s->group[g].count;
    for (int g = 0; g < s->groups; g++) {
        int64_t each = keys_below(&s->group[g], size, low);
        bool next = n > 0 && s->group[g].elements + each * size ==
                                 low;  // whether the group takes its next key at exactly this level
        if (next && n < s->group[g].count) split(s, g, (int)n);
        each += next;
        if (next) n -= s->group[g].count;
        s->keys[(size_t)g * (size_t)s->classes + (size_t) class] = each;
        s->group[g].elements += each * size;
    }
}

struct shard_sizes *shard_sizes_of(const struct config *c, const struct layout *l) {
    struct shard_cut cut;
    if (shard_cut_of(c, l, &cut)) return NULL;
    struct shard_sizes *s = xcalloc(1, sizeof *s);
    s->cut = cut;
    s->servers = c->ps.servers;
    // With equal parts per server, only the keys of a server are known, not those of its threads.
    s->threads = cut.parts > 1 ? 1 : c->ps.threads;
    count_all(s, l);
    // Each size splits at most one group.
    s->group = xcalloc((unsigned long)s->classes + 1, sizeof *s->group);
    s->keys = xcalloc((unsigned long)(s->classes + 1) * (unsigned long)s->classes, sizeof *s->keys);
    s->groups = 1;
    s->group[0].count = s->servers * s->threads;
    for (int i = 0; i < s->classes; i++) deal(s, i);
    return s;
}

void shard_sizes_destroy(struct shard_sizes **s) {
    if (!*s) return;
    free((*s)->class);
    free((*s)->group);
    free((*s)->keys);
    free(*s);
    *s = NULL;
}

// ---------------------------------------------------------------- servers
int64_t shard_sizes_of_server(const struct shard_sizes *s, int rank, int64_t *keys) {
    int64_t elements = 0;
    int begin = rank * s->threads, end = begin + s->threads;
    for (int i = 0; keys && i < s->classes; i++) keys[i] = 0;
    for (int g = 0; g < s->groups; g++) {
        const struct shard_group *of = &s->group[g];
        int from = of->first > begin ? of->first : begin,
            to = of->first + of->count < end ? of->first + of->count : end;
        if (from >= to) continue;
        elements += (to - from) * of->elements;
        for (int i = 0; keys && i < s->classes; i++)
            keys[i] += (to - from) * s->keys[(size_t)g * (size_t)s->classes + (size_t)i];
    }
    return elements;
}

int shard_sizes_same(const struct shard_sizes *s, int rank) {
    int begin = rank * s->threads;
    for (int g = 0; g < s->groups; g++) {
        int end = s->group[g].first + s->group[g].count;
        if (begin >= s->group[g].first && begin < end && end / s->threads > rank)
            return end / s->threads - rank;
    }
    return 1;
}
