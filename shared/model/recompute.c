#include "shared/model/recompute.h"

const char *recompute_name(enum recompute_kind k) {
    static const char *const names[] = {"none", "cheap", "block"};
    return names[k];
}

int recompute_blocks(const struct recompute_options *o, const struct model_spec *s) {
    if (o->kind != RECOMPUTE_BLOCK) return 0;
    return o->blocks > 0 && o->blocks < s->layers ? (int)o->blocks : s->layers;
}

// A product takes 2 flops per parameter in the forward. w_down is not recomputed, because the backward does not
// need its result.
struct token_flops recompute_flops_per_token(const struct recompute_options *o, const struct model_spec *s,
                                             double seq) {
    int kept = recompute_blocks(o, s);
    double again = kept ? (double)(kept - 1) : 0, c = s->channels, hd = (double)s->heads * s->head_size;
    double products =
        (hd + 2.0 * (double)s->kv_heads * s->head_size) * c + hd * c + c * (double)model_up_width(s);
    double attention = 4.0 * seq * hd;
    return (struct token_flops){.full = again * (2.0 * products + attention),
                                .causal = again * (2.0 * products + 0.5 * attention)};
}

// Per block: two norms, C read and C written each, and the activation function, U read and F written.
double recompute_elements_per_token(const struct recompute_options *o, const struct model_spec *s) {
    int kept = o->kind == RECOMPUTE_CHEAP ? s->layers : recompute_blocks(o, s);
    return kept ? (double)(kept - 1) * (4.0 * s->channels + (double)model_up_width(s) + s->ffn) : 0;
}
