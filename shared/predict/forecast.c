#include "shared/predict/forecast.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "shared/core/arena.h"
#include "shared/core/error.h"
#include "shared/model/recompute.h"

void forecast_report(const struct config *c, const char *role, int rank, const struct prediction *p,
                     struct rank_report *out) {
    *out = (struct rank_report){.rank = rank, .steps = c->steps};
    snprintf(out->role, sizeof out->role, "%s", role);
    rank_report_predict(out, c, p);
    out->wire_later.steps = wire_later_steps(&p->wire, c->steps);
}

static bool same_figures(const struct rank_report *a, const struct rank_report *b) {
    return !strcmp(a->role, b->role) && !memcmp(&a->memory, &b->memory, sizeof a->memory) &&
           !memcmp(&a->wire, &b->wire, sizeof a->wire) &&
           a->transport_bound_bytes == b->transport_bound_bytes;
}

static void add_ranks(struct forecast *f, const struct rank_report *r, int count) {
    double device = (double)mem_device_bytes(r->memory.predicted_bytes);
    struct forecast_ranks *last = f->count ? &f->ranks[f->count - 1] : NULL;
    if (last && same_figures(&last->report, r)) {
        last->count += count;
    } else {
        f->ranks = xrealloc(f->ranks, (size_t)(f->count + 1) * sizeof *f->ranks);
        f->ranks[f->count++] = (struct forecast_ranks){count, *r};
    }
    f->sums.wire_bytes = fmax(f->sums.wire_bytes, fmax(rank_predicted_sent(r), rank_predicted_received(r)));
    if (!strcmp(r->role, "server")) f->sums.server_bytes = fmax(f->sums.server_bytes, device);
    if (strcmp(r->role, "worker") != 0) return;
    if (r->rank == 0) {
        f->sums.device_bytes = device;
        f->sums.offload = r->wire.offload;
    }
    // The bytes on disk are those that a step writes there: masters, states and 16-bit weights, each once.
    f->sums.disk_bytes += (double)r->wire.offload.written * count;
}

static void put_work(const struct job *j, struct forecast_sums *f) {
    const struct config *c = j->config;
    double tokens = (double)(config_own_sequences(c) * c->seq);
    bool whole =
        (c->variant == 0 && c->row->takes_stage) || c->row->takes_graph;  // each rank updates all elements
    f->tokens = config_own_sequences(c) * c->workers * c->seq;
    f->flop = tokens * model_flops_per_token(&j->spec, (double)c->seq).causal;
    f->recomputed_flop = tokens * recompute_flops_per_token(&c->recompute, &j->spec, (double)c->seq).causal;
    f->recomputed_bytes =
        tokens * recompute_elements_per_token(&c->recompute, &j->spec) * (double)dtype_size(c->dtype);
    f->updated_bytes = (double)j->layout->params * (double)optimizer_bytes(c->optimizer.row, true) /
                       (whole ? 1 : c->workers);
}

int forecast_of(const struct job *j, struct forecast *out) {
    const struct config *c = j->config;
    const struct memory_ranks one = {"worker", 0, 1, .processes = true, .gpus = 1},
                              all = memory_ranks_of_run(c);
    struct memory_need of_one, of_all;
    *out = (struct forecast){0};
    for (const struct topology_role *role = c->row->roles; role->name; role++)
        for (int r = 0, same, count = config_ranks(c, role->name); r < count; r += same) {
            struct prediction p;
            struct rank_report report;
            if (prediction_of_rank(j, role->name, r, &p)) {
                forecast_free(out);
                return -1;
            }
            same = prediction_same_ranks(&p, count - r);
            forecast_report(c, role->name, r, &p, &report);
            add_ranks(out, &report, same);
        }
    if (memory_need_of(j, &one, &of_one) || memory_need_of(j, &all, &of_all)) {
        forecast_free(out);
        return -1;
    }
    if (of_one.gpus) out->sums.device_bytes += of_one.gpu[0].allowed_bytes;
    out->sums.host_bytes = ceil(of_all.host.predicted_bytes + of_all.host.allowed_bytes);
    put_work(j, &out->sums);
    return 0;
}

void forecast_free(struct forecast *f) {
    free(f->ranks);
    *f = (struct forecast){0};
}
