#include "shared/time/split.h"

// ---------------------------------------------------------------- makes spans disjoint and sorts them
static int64_t later(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t earlier(int64_t a, int64_t b) { return a < b ? a : b; }

// The arrays are nearly sorted: insertion takes about one pass, and allocates nothing.
#define SORT_BY_BEGIN(type, all, n)                                                   \
    for (size_t i = 1; i < (n); i++) {                                                \
        type one = (all)[i];                                                          \
        size_t j = i;                                                                 \
        for (; j > 0 && (all)[j - 1].begin > one.begin; j--) (all)[j] = (all)[j - 1]; \
        (all)[j] = one;                                                               \
    }

// Cuts each span to [begin, end), and removes what an earlier span covers. Returns how many spans are left.
static size_t cut_spans(struct span *s, size_t n, int64_t begin, int64_t end) {
    size_t kept = 0;
    int64_t at = begin;
    SORT_BY_BEGIN(struct span, s, n);
    for (size_t i = 0; i < n; i++) {
        struct span one = s[i];
        one.begin = later(one.begin, at);
        one.end = earlier(one.end, end);
        if (one.end <= one.begin) continue;
        at = one.end;
        s[kept++] = one;
    }
    return kept;
}

// The same for blocked intervals, but their ends are not cut, even after the step's end: the end shows which transfer
// ends a gap. Where intervals overlap, the time belongs to the one that ends last. So an interval that lies within
// another one is removed.
static size_t cut_blocks(struct split_block *b, size_t n, int64_t begin, int64_t end) {
    size_t kept = 0;
    SORT_BY_BEGIN(struct split_block, b, n);
    for (size_t i = 0; i < n; i++) {
        struct split_block one = b[i];
        one.begin = later(one.begin, begin);
        if (one.end <= one.begin || one.begin >= end) continue;
        while (kept > 0 && b[kept - 1].end > one.begin) {
            struct split_block *before = &b[kept - 1];
            if (before->end > one.end) break;
            before->end = one.begin;
            if (before->end > before->begin) break;
            kept--;
        }
        if (kept > 0 && b[kept - 1].end > one.begin) continue;
        b[kept++] = one;
    }
    return kept;
}

// ---------------------------------------------------------------- seconds
static double seconds(int64_t ns) { return (double)ns * 1e-9; }

// Returns how many ns of [begin, end) the disjoint spans cover. *from: index of the first span that may overlap, which is
// advanced: calls come in order of time.
static int64_t covered(const struct span *s, size_t n, size_t *from, int64_t begin, int64_t end) {
    int64_t sum = 0;
    while (*from < n && s[*from].end <= begin) ++*from;
    for (size_t i = *from; i < n && s[i].begin < end; i++)
        sum += later(0, earlier(s[i].end, end) - later(s[i].begin, begin));
    return sum;
}

static double *component_of(struct time_split *t, enum phase p) {
    switch (p) {
        case PHASE_FORWARD:
            return &t->forward;
        case PHASE_BACKWARD:
            return &t->backward;
        case PHASE_OPTIMIZER:
            return &t->optimizer;
        case PHASE_DATA:
            return &t->data;
        case PHASE_COMM:
            return &t->comm_exposed;
        case PHASE_OTHER:
        case PHASES:
            break;
    }
    return &t->host;
}

// Adds time that is idle and blocked.
static void add_blocked(struct time_split *t, const struct split_input *in, const struct split_block *b,
                        int64_t begin, int64_t end) {
    int64_t from = earlier(later(b->own_ready, begin), end);
    int64_t to = later(from, earlier(b->peers_ready, end));
    t->wait += seconds(to - from);
    t->comm_exposed += seconds(end - begin - (to - from));
    const int64_t cuts[] = {begin, from, to, end};
    for (int i = 0; i < 3 && in->gap; i++)
        if (cuts[i + 1] > cuts[i])
            in->gap(in->ctx, &(struct span){.begin = cuts[i],
                                            .end = cuts[i + 1],
                                            .id = b->id,
                                            .key = -1,
                                            .peer = b->peer,
                                            .kind = i == 1 ? SPAN_WAIT : SPAN_EXPOSED});
}

struct cursor {
    size_t block, data;
};

// Adds time that is idle and not blocked.
static void add_free(struct time_split *t, const struct split_input *in, struct cursor *at, int64_t begin,
                     int64_t end) {
    int64_t data = covered(in->data, in->data_count, &at->data, begin, end);
    t->data += seconds(data);
    t->host += seconds(end - begin - data);
}

// Adds a gap between two busy spans.
static void add_gap(struct time_split *t, const struct split_input *in, struct cursor *at, int64_t begin,
                    int64_t end) {
    while (at->block < in->blocked_count && in->blocked[at->block].end <= begin) at->block++;
    for (size_t i = at->block; i < in->blocked_count && in->blocked[i].begin < end; i++) {
        const struct split_block *b = &in->blocked[i];
        int64_t from = later(b->begin, begin), to = earlier(b->end, end);
        if (from > begin) add_free(t, in, at, begin, from);
        add_blocked(t, in, b, from, to);
        begin = to;
    }
    if (end > begin) add_free(t, in, at, begin, end);
}

void time_split_of(const struct split_input *step, struct time_split *out) {
    struct split_input in = *step;
    struct cursor at = {0};
    size_t move = 0;
    int64_t idle_since = in.begin;
    *out = (struct time_split){0};
    if (in.end <= in.begin) return;
    in.busy_count = cut_spans(in.busy, in.busy_count, in.begin, in.end);
    in.blocked_count = cut_blocks(in.blocked, in.blocked_count, in.begin, in.end);
    in.move_count = cut_spans(in.moves, in.move_count, in.begin, in.end);
    in.data_count = cut_spans(in.data, in.data_count, in.begin, in.end);
    for (size_t i = 0; i < in.busy_count; i++) {
        const struct span *b = &in.busy[i];
        if (b->begin > idle_since) add_gap(out, &in, &at, idle_since, b->begin);
        *component_of(out, (enum phase)b->phase) += seconds(b->end - b->begin);
        if (b->phase != PHASE_COMM)
            out->comm_overlapped += seconds(covered(in.moves, in.move_count, &move, b->begin, b->end));
        idle_since = b->end;
    }
    if (in.end > idle_since) add_gap(out, &in, &at, idle_since, in.end);
    out->total = seconds(in.end - in.begin);
}

void time_split_add(struct time_split *sum, const struct time_split *s) {
    sum->data += s->data;
    sum->forward += s->forward;
    sum->backward += s->backward;
    sum->optimizer += s->optimizer;
    sum->comm_exposed += s->comm_exposed;
    sum->comm_overlapped += s->comm_overlapped;
    sum->wait += s->wait;
    sum->host += s->host;
    sum->total += s->total;
}

double time_split_parts(const struct time_split *s) {
    return s->data + s->forward + s->backward + s->optimizer + s->comm_exposed + s->wait + s->host;
}
