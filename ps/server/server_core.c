#include "ps/server/server_core.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ps/job/batches.h"
#include "ps/net/medium.h"
#include "ps/record/staleness_log.h"
#include "ps/server/policy_list.h"
#include "ps/server/server_state.h"
#include "shared/core/error.h"

// Tells a sender why its message was rejected. The worker fails with this text.
static void refuse(struct server_core *c, const struct wire_header *h, const char *why) {
    struct wire_header r = {.kind = WIRE_REFUSED, .key = h->key, .step = h->step};
    snprintf(r.text, sizeof r.text, "%s of key %d, step %lld: %s", wire_kind_name(h->kind), h->key,
             (long long)h->step, why);
    c->totals.refused++;
    port_tell(&c->o.port, h->rank, &r);
}

// ---------------------------------------------------------------- messages
// Returns why a push that was not taken before cannot be taken, or NULL if it can.
static const char *push_unfit(const struct server_core *c, const struct server_key *k,
                              const struct wire_header *h, const struct gradient *g) {
    if (!k->loaded) return "its initial weights have not been loaded";
    if (!g->data) return "its gradient is outside of what the worker shares";
    if (c->code.kind == CODE_NONE && g->bytes != (size_t)k->n * dtype_size(c->dtype))
        return "the payload's size is not the partition's";
    if (h->step > k->pushed[h->rank]) return "an earlier step is not over";
    if (h->version > k->version) return "it was computed on a version the server does not have";
    const char *why = c->policy->unfit(c, k, h);
    if (why) return why;
    const struct codec *codec = codec_of(c->code.kind);
    return codec ? codec->fault(&c->code, g->data, g->bytes, k->n) : NULL;
}

static int on_push(struct server_core *c, struct server_key *k, const struct wire_header *h,
                   struct ps_frame *frame) {
    int64_t expected = k->pushed[h->rank];
    const struct server_segment *s = &c->segments[h->rank];
    bool within = s->base && h->data_bytes <= s->bytes && h->data_offset <= s->bytes - h->data_bytes;
    const struct gradient g = {frame    ? frame->data
                               : within ? s->base + h->data_offset
                                        : NULL,
                               frame ? frame->bytes : h->data_bytes, frame};
    if (h->step < expected) {
        const struct gradient *held = &slot_of(c, k, h->step)->held[h->rank];
        c->totals.duplicates++;
        ps_frame_release(frame);
        if (h->step == expected - 1)
            acknowledge(c, k, h->rank, h->step, held->data && !(held->frame && c->policy->takes_frames));
        return 0;
    }
    const char *why = push_unfit(c, k, h, &g);
    if (!why) return c->policy->admit(c, k, h, &g);
    ps_frame_release(frame);
    refuse(c, h, why);
    return 0;
}

// A worker resumes from a checkpoint that is further than the one that this shard has read.
static void refuse_beyond(struct server_core *c, const struct server_key *k, int worker, int64_t want) {
    refuse(
        c, &(struct wire_header){.kind = WIRE_PULL, .rank = worker, .key = k->key, .step = want},
        "the worker resumes after more steps than the checkpoint has that this server has read: is it the same "
        "directory?");
}

// want: the step whose weights are asked for. A pull that follows no push waits until weights are loaded.
static void on_pull(struct server_core *c, struct server_key *k, const struct wire_header *h, int64_t want) {
    struct server_pull *p = &k->pulls[h->rank];
    const struct server_segment *s = &c->segments[h->rank];
    size_t bytes = (size_t)k->n * dtype_size(c->dtype);
    bool final = (h->flags & WIRE_FINAL) != 0,
         outside = bytes > s->bytes || h->reply_offset > s->bytes - bytes;
    bool apart = c->policy->pulls_apart;
    if (!k->loaded && !final && !apart) {
        refuse(c, h, "its initial weights have not been loaded");
        return;
    }
    if (h->reply_offset && outside) {
        refuse(c, h, "it asks for weights outside of what it shares");
        return;
    }
    if (c->policy->before_pull) c->policy->before_pull(c, k, h, want);
    if (k->loaded && (apart ? p->seq == 0 : final) && !c->process_no && want > k->pushed[h->rank])
        refuse_beyond(c, k, h->rank, want);
    if (h->seq <= p->seq || (k->loaded && want > k->step + 1 + k->pushed[h->rank])) return;
    // A worker that has drained its steps accepts no weights before that step.
    int64_t least = want - c->rule.delay, base = h->flags & WIRE_DRAINS ? want : p->base;
    if (least < base) least = base;
    *p = (struct server_pull){.pending = true,
                              .want = want,
                              .least = final ? want : least,
                              .base = base,
                              .seq = h->seq,
                              .reply_offset = h->reply_offset,
                              .final = final};
    if (pull_ready(c, k, h->rank)) answer_pull(c, k, h->rank);
    // The end of a job with a shared budget: no worker pushes any more.
    if (k->batches && k->loaded && final && checkpoint_wanted(c, h)) checkpoint_key(c, k, want, true);
}

// Rounds the masters, or a frozen key's fp32 values, to the run's type; in fp32 the weights are the masters. Returns 0,
// or -1 with an error.
static int round_weights(struct server_core *c, const struct server_key *k, const void *from) {
    struct cast_args a = {.out = k->buf.weight, .in = from, .n = k->n, .from = DT_F32, .to = c->dtype};
    const char *why = "";
    if (k->buf.weight == from || cpu_ops[OP_CAST](1, &a, &why) == 0) return 0;
    return core_fail(c->error, "key %d (%s): rounding its weights: %s", k->key, k->unit->name, why);
}

// Worker 0 loads the masters in fp32; the weights are rounded from them once. A late request is acknowledged and dropped.
static int on_init(struct server_core *c, struct server_key *k, const struct wire_header *h,
                   struct ps_frame *frame) {
    bool started = k->version > 0 || k->step > 0, fits = frame->bytes == (size_t)k->n * sizeof(float);
    for (int w = 0; w < c->rule.workers; w++) started = started || k->pushed[w] > 0;
    bool frozen = is_frozen(c, k);
    if (frozen) started = k->loaded;
    bool takes = h->rank == 0 && fits && !started && h->seq > k->load_seq && !atomic_load(&k->inflight);
    if (takes && !frozen) memcpy(k->buf.master, frame->data, frame->bytes);
    int rc = takes ? round_weights(c, k, frozen ? frame->data : k->buf.master) : 0;
    ps_frame_release(frame);
    if (h->rank != 0 || !fits) {
        refuse(c, h,
               h->rank != 0 ? "only worker 0 loads weights" : "the payload's size is not the partition's");
        return 0;
    }
    if (rc != 0) return -1;
    if (takes) {
        k->load_seq = h->seq;
        k->loaded = true;
    }
    if (takes && frozen) answer_pulls(c, k);
    const struct wire_header r = {.kind = WIRE_INIT_ACK, .key = k->key, .seq = h->seq};
    port_tell(&c->o.port, h->rank, &r);
    return 0;
}

// Drops messages of any other sender without an answer: their routing id may be anyone's.
bool server_core_accepts_sender(const struct server_core *c, const struct wire_header *h) {
    if (h->role != PS_WORKER || h->rank < 0 || h->rank >= c->rule.workers) return false;
    if (c->o.job == 0 || h->job != c->o.job) return false;
    if (c->process_no && c->process_no[h->rank] != h->process_no) return false;
    return h->incarnation && c->incarnation[h->rank] == h->incarnation;
}

// Releases all that a worker's last process has left, except the count of its pushes: a key takes no push
// twice.
static void replace_worker(struct server_core *c, int worker) {
    for (int i = 0; i < c->all; i++) {
        struct server_key *k = &c->keys[i];
        k->pulls[worker] = (struct server_pull){0};
        for (struct slot *s = k->slots; s < k->slots + c->slots; s++) {
            bool counted = s->held[worker].data && s->contributed;
            if (counted && --s->contributed == 0) c->open--;
            gradient_release(c, &s->held[worker]);
        }
    }
    if (c->policy->replace_worker) c->policy->replace_worker(c, worker);
    c->attached -= c->segments[worker].base != NULL;
    c->segments[worker] = (struct server_segment){0};
}

void server_core_member(struct server_core *c, int worker, uint64_t incarnation, uint32_t process_no) {
    if (worker < 0 || worker >= c->rule.workers || !incarnation) return;
    if (c->process_no ? process_no <= c->process_no[worker] : c->incarnation[worker] != 0) return;
    if (c->process_no && process_no > 1) replace_worker(c, worker);
    if (c->process_no) c->process_no[worker] = process_no;
    c->incarnation[worker] = incarnation;
}

// A frozen key has no steps of its own, and follows the steps that workers ask for. A shard with only frozen keys
// counts its steps by them.
static void follow(struct server_core *c, struct server_key *k, const struct wire_header *h) {
    if (h->step > k->pushed[h->rank]) k->pushed[h->rank] = h->step;
    if (h->step > k->step) k->step = h->step;
    if (!c->count && !(h->flags & WIRE_FINAL)) c->totals.steps = (double)(k->step + 1 - c->begin);
}

int server_core_message(struct server_core *c, const struct wire_header *h, struct ps_frame *frame,
                        double now) {
    c->now = now;
    bool carries = (h->kind == WIRE_PUSH && !h->data_bytes) || h->kind == WIRE_INIT;
    if (c->error[0] || !server_core_accepts_sender(c, h) || (frame != NULL) != carries) {
        c->totals.refused++;
        ps_frame_release(frame);
        return c->error[0] ? -1 : 0;
    }
    if (h->key >= c->o.map->count || c->index[h->key] < 0) {
        ps_frame_release(frame);
        refuse(c, h, "this shard does not own the key");
        return 0;
    }
    struct server_key *k = &c->keys[c->index[h->key]];
    if (is_frozen(c, k) && h->kind == WIRE_PULL) follow(c, k, h);
    switch (is_frozen(c, k) && h->kind == WIRE_PUSH ? WIRE_NONE : h->kind) {
        case WIRE_PUSH:
            if (h->flags & WIRE_PULLS) on_pull(c, k, h, h->step + 1);
            return on_push(c, k, h, frame);
        case WIRE_PULL:
            if (h->flags & WIRE_STOP && k->loaded && c->policy->end && c->policy->end(c, k) != 0) return -1;
            on_pull(c, k, h, h->step);
            return c->policy->advance ? c->policy->advance(c, k) : 0;
        case WIRE_SNAPSHOT:
            // Answered as soon as the key's version is the wanted one or a later one (ps/worker/snapshot_pulls.h).
            // No worker waits for an older request any more.
            if (h->seq <= k->shot.seq) return 0;
            k->shot =
                (struct server_shot){.pending = true, .worker = h->rank, .want = h->version, .seq = h->seq};
            answer_snapshot(c, k);
            return 0;
        case WIRE_INIT:
            return on_init(c, k, h, frame);
        default:
            ps_frame_release(frame);
            refuse(c, h, "a shard takes no such message");
            return 0;
    }
}

bool server_core_has_open(const struct server_core *c) { return c->open > 0; }
bool server_core_is_urgent(const struct server_core *c) { return c->waiting != NULL; }

int server_core_tick(struct server_core *c, double now) {
    if (c->error[0]) return -1;
    c->now = now;
    struct server_key *k = c->waiting;
    c->waiting = NULL;
    for (struct server_key *next; k; k = next) {
        next = k->next_waiting;
        k->waits = false;
        if (c->policy->advance(c, k) != 0) return -1;
    }
    return 0;
}

int server_core_decision(struct server_core *c, const struct wire_header *h, double now) {
    if (c->error[0]) return -1;
    c->now = now;
    if (h->kind == WIRE_MEMBER && h->flags & WIRE_FINAL) {  // the worker no longer pushes
        if (h->key < 0 || h->key >= c->rule.workers) return 0;
        c->over[h->key] = true;
        return c->policy->over ? c->policy->over(c, h->key) : 0;
    }
    if (h->kind == WIRE_MEMBER) server_core_member(c, h->key, h->seq, h->process_no);
    if (h->kind == WIRE_SET) return c->policy->fix ? c->policy->fix(c, h) : 0;
    return h->kind == WIRE_DECISION ? round_decided(c, h) : 0;
}

bool server_core_renew(struct server_core *c, int worker, struct ps_message *m) {
    return renew_answer(c, &c->keys[c->index[m->header.key]], worker, m);
}

// ---------------------------------------------------------------- create, destroy, state
static void key_init(struct server_core *c, struct server_key *k, int key) {
    unsigned long workers = (unsigned long)c->rule.workers;
    k->key = key;
    k->part = &c->o.map->parts[key];
    k->unit = &c->o.layout->units[k->part->unit];
    k->n = k->part->end - k->part->begin;
    k->buf = c->o.buffers[key];
    k->pushed = xcalloc(workers, sizeof *k->pushed);
    k->staleness = xcalloc(workers, sizeof *k->staleness);
    k->pulls = xcalloc(workers, sizeof *k->pulls);
    k->slots = xcalloc((unsigned long)c->slots, sizeof *k->slots);
    for (struct slot *s = k->slots; s < k->slots + c->slots; s++) {
        s->held = xcalloc(workers, sizeof *s->held);
        s->ready_ns = xcalloc(workers, sizeof *s->ready_ns);
    }
    if (k->buf.old) k->old_version = xcalloc((unsigned long)c->rule.lead, sizeof *k->old_version);
    if (c->policy->open) c->policy->open(c, k);
}

#define MALLOC_BYTES 16  // overhead of the C library per allocation

int64_t server_core_key_bytes(const struct config *c) {
    const struct consistency_rule rule = consistency_of(c);
    const struct push_policy *policy = push_policy_configured(c);
    const struct server_key *k = NULL;
    int64_t slot = sizeof *k->slots + c->workers * (int64_t)(sizeof *k->slots->held + sizeof(int64_t));
    int64_t worker = sizeof *k->pushed + sizeof *k->staleness + sizeof *k->pulls;
    int64_t old = rule.keeps ? MALLOC_BYTES + rule.lead * (int64_t)sizeof *k->old_version : 0;
    return (int64_t)sizeof *k + 10 * MALLOC_BYTES + old + (1 + rule.lead) * slot + worker * c->workers +
           (policy->key_bytes ? policy->key_bytes(c) : 0);
}

struct server_core *server_core_create(const struct server_core_options *o) {
    struct server_core *c = xcalloc(1, sizeof *c);
    const struct config *config = o->config;
    c->o = *o;
    c->rule = o->rule ? *o->rule : consistency_of(config);
    c->policy = push_policy_of(config, &c->rule, o->replay != NULL);
    c->slots = 1 + c->rule.lead;
    c->dtype = config->dtype;
    c->code = config->ps.code;
    c->group = config_group(config);
    c->commit_waits = commit_round(config);
    unsigned long workers = (unsigned long)c->rule.workers;
    c->index = xcalloc((unsigned long)o->map->count + 1, sizeof *c->index);
    for (int key = 0; key < o->map->count; key++) c->all += o->map->parts[key].shard == o->shard;
    c->keys = xcalloc((unsigned long)c->all + 1, sizeof *c->keys);
    c->rounds = xcalloc((unsigned long)c->slots, sizeof *c->rounds);
    c->incarnation = xcalloc(workers, sizeof *c->incarnation);
    c->segments = xcalloc(workers, sizeof *c->segments);
    c->grads = xcalloc(workers, sizeof *c->grads);
    c->row = xcalloc(workers, sizeof *c->row);
    c->over = xcalloc(workers, sizeof *c->over);
    c->batches = xcalloc((unsigned long)batches_words(config), sizeof *c->batches);
    c->chunk = xcalloc(KEY_PASS_CHUNK, sizeof(float));
    if (ps_elastic(config)) c->process_no = xcalloc(workers, sizeof *c->process_no);
    for (int i = 0; i < c->slots && c->policy->fix; i++)
        c->rounds[i].parts = xcalloc(workers, sizeof *c->rounds->parts);
    for (int key = 0, at = 0; key < o->map->count; key++) {
        c->index[key] = -1;
        if (o->map->parts[key].shard != o->shard) continue;
        c->index[key] = at;
        c->count += key < o->map->trained;
        key_init(c, &c->keys[at++], key);
    }
    return c;
}

void server_core_destroy(struct server_core **core) {
    struct server_core *c = *core;
    if (!c) return;
    for (struct server_key *k = c->keys; k < c->keys + c->all; k++) {
        if (c->policy->close) c->policy->close(k);
        for (struct slot *s = k->slots; s < k->slots + c->slots; s++) {
            for (int w = 0; w < c->rule.workers; w++) ps_frame_release(s->held[w].frame);
            free(s->held);
            free(s->ready_ns);
        }
        free(k->slots);
        free(k->pushed);
        free(k->staleness);
        free(k->pulls);
        free(k->batches);
        free(k->sum.of);
        free(k->sent);
        free(k->old_version);
    }
    for (int i = 0; i < c->slots; i++) free(c->rounds[i].parts);
    free(c->rounds);
    free(c->keys);
    free(c->index);
    free(c->incarnation);
    free(c->process_no);
    free(c->segments);
    free(c->grads);
    free(c->row);
    free(c->over);
    free(c->batches);
    free(c->chunk);
    free(c);
    *core = NULL;
}

void server_core_attach(struct server_core *c, int worker, const struct server_segment *s) {
    c->attached += (s->base != NULL) - (c->segments[worker].base != NULL);
    c->segments[worker] = *s;
}

static int key_goes_on(struct server_core *c, struct server_key *k, const struct key_counts *r) {
    int64_t pushes = 0;
    if (round_weights(c, k, k->buf.master) != 0) return -1;
    k->version = r->version;
    k->skew = r->updates - r->version;
    k->step = r->clock;
    for (int w = 0; w < c->rule.workers; w++) k->pulls[w].base = r->clock;
    memcpy(k->pushed, r->pushed, (size_t)c->rule.workers * sizeof *k->pushed);
    if (k->batches) memcpy(k->batches, r->batches, (size_t)batches_words(c->o.config) * sizeof *k->batches);
    k->loaded = true;
    for (int w = 0; w < c->rule.workers; w++) {
        pushes += k->pushed[w];
        if (k->pulls[w].pending && k->pulls[w].want > k->pushed[w]) refuse_beyond(c, k, w, k->pulls[w].want);
    }
    if (c->o.staleness_log) staleness_log_begin(c->o.staleness_log, k->key, pushes);
    answer_pulls(c, k);
    return 0;
}

int server_core_resume(struct server_core *c, const struct key_rows *rows, int64_t step) {
    c->begin = c->step = step;
    for (int i = 0; i < c->count; i++)
        if (key_goes_on(c, &c->keys[i], &rows->keys[c->keys[i].key]) != 0) return -1;
    return 0;
}

const char *server_core_error(const struct server_core *c) { return c->error; }

void server_core_totals(const struct server_core *c, struct server_totals *out) { *out = c->totals; }

int64_t server_core_version(const struct server_core *c, int key) {
    int i = key >= 0 && key < c->o.map->count ? c->index[key] : -1;
    return i < 0 ? -1 : c->keys[i].version;
}

int64_t server_core_updates(const struct server_core *c, int key) {
    int i = key >= 0 && key < c->o.map->count ? c->index[key] : -1;
    return i < 0 ? -1 : c->keys[i].version + c->keys[i].skew;
}
