#include "shared/model/recompute.h"

const char *recompute_name(enum recompute_kind k) {
    static const char *const names[] = {"none", "cheap", "block"};
    return names[k];
}

int recompute_blocks(const struct recompute_options *o, const struct model_spec *s) {
    if (o->kind != RECOMPUTE_BLOCK) return 0;
    return o->blocks > 0 && o->blocks < s->layers ? (int)o->blocks : s->layers;
}

// w_down is not recomputed, because the backward does not need its result.
struct unit_flops recompute_unit_flops(const struct recompute_options *o, const struct model_spec *s,
                                       int unit, double seq) {
    if (unit < 1 || unit >= recompute_blocks(o, s)) return (struct unit_flops){0};
    struct unit_flops of = model_unit_flops(s, unit, seq);
    of.products -= 2.0 * (double)s->channels * s->ffn;
    return of;
}

struct token_flops recompute_flops_per_token(const struct recompute_options *o, const struct model_spec *s,
                                             double seq) {
    int kept = recompute_blocks(o, s);
    double again = kept ? (double)(kept - 1) : 0;
    struct unit_flops one = recompute_unit_flops(o, s, 1, seq);
    return (struct token_flops){.full = again * (one.products + one.attention),
                                .causal = again * (one.products + 0.5 * one.attention)};
}

// Per block: two norms, C read and C written each, and the activation function, U read and F written.
double recompute_elements_per_token(const struct recompute_options *o, const struct model_spec *s) {
    int kept = o->kind == RECOMPUTE_CHEAP ? s->layers : recompute_blocks(o, s);
    return kept ? (double)(kept - 1) * (4.0 * s->channels + (double)model_up_width(s) + s->ffn) : 0;
}
