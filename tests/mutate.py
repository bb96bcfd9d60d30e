#!/usr/bin/env python3
"""Breaks one rule of the program at a time, and asks the test that keeps it: a test that passes all the same keeps nothing.

    tests/mutate.py                   every row of RULES, in a copy of this tree (make mutations)
    tests/mutate.py gossip push_set   those whose file, test or rule has one of these words
    tests/mutate.py --list            the rows, and whether each still finds its line; builds nothing

A row names a file, a text that occurs once in it, what takes its place, and the test that then has to fail. The copy is taken from
the working tree with what has been built of it, so a row costs an object file, a library and a test. First each test runs on the
unchanged copy. "caught" is said of a test that fails, crashes or is still running after --limit seconds; "SURVIVED" of one that
passes. Exit status: 0 all rows were caught; 1 one was not, or does not build, or finds its line no more; 2 wrong command line.
"""
import argparse
import collections
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LEFT_OUT = {"": (".git", "runs"), "build": ("address", "thread", "undefined", "fuzz", "tests", "bits", "bundle", "cuda")}

Rule = collections.namedtuple("Rule", "rule file text instead test")

# The oracles of the star's consistencies and of the decentral exchanges. The programs that a test needs follow its name.
ARRIVALS, LATE, SET = "test_ps_arrivals", "test_ps_late", "test_ps_step_set"
LEAD, UNITS, MANY = "test_ps_lead", "test_ps_units", "test_ps_many"
GOSSIP, LOCAL, REDUCE = "test_decentral_gossip", "test_decentral_local_steps", "test_kernels_reduce"
DELAY, STEP, LORA = "star/test_bounded_delay.py", "job/test_job_step.py", "job/test_lora.py"
ON_ARRIVAL, IN_ORDER, PUSH_SET = "ps/server/push_on_arrival.c", "ps/server/push_in_order.c", "ps/server/push_set.c"
PUSH_UNITS, WORKER = "ps/server/push_units.c", "ps/worker/worker_core.c"
RINGLEADER = "ps/server/push_ringleader.c"
CORE_C, EPOCHS = "ps/scheduler/scheduler_core.c", "test_ps_epochs"
GOSSIP_C, LOCAL_C = "decentral/gossip.c", "shared/launch/local_steps.c"
TCP, LIVES = "test_decentral_tcp", "decentral/collective/rank_liveness.c"
MESH, LANES, SEAT = "shared/fabric/mesh.c", "shared/fabric/lanes.c", "shared/fabric/client.c"

HF, HF_DIR, DATA, DATA_FILES = "test_shared_hf", "shared/hf/hf_dir.c", "test_shared_data", "shared/data/data_files.c"

RULES = [Rule(*row) for row in (
    # ---- ranks that are processes
    ("a rank that closed its connections is missed", MESH, "if (missing[i] && m->peers[i].gone_s > 0", "if (false && m->peers[i].gone_s > 0", TCP),
    ("a rank that fails sends the others the reason", "decentral/collective/collective_peers.c", "if (!rank_liveness_end_all(m->impl.lives, why, lost)) return;",
     "if (rank_liveness_end_all(m->lives, why, lost) || true) return;", TCP),
    ("a rank that needs nothing of one that has left goes on", MESH, "if (missing[i] && m->peers", "if (m->peers", TCP),
    ("a message of another length is an error", LANES, "h->total != p->in_bytes || ", "", TCP),
    ("what is on its way to where all meet is bounded", "shared/fabric/mailbox.c", " && n->in_flight + MEET_CHUNK + sizeof(struct meet_message) <= MEET_WINDOW", "", "test_shared_registry_slow"),
    ("what is bulk is said again only when it is known to be lost", "shared/fabric/link.c", "oldest && !oldest->bulk", "oldest", "test_shared_registry_slow"),
    ("a want reads nothing that is older than itself", "shared/fabric/client.c", " || w->asked > m->count", "", "test_shared_registry"),
    ("what is small does not wait where all meet for what is long", "shared/fabric/mailbox.c", "m->kind >= MEET_GET && v->bytes <= MEET_CHUNK", "false", "test_shared_registry_slow"),
    ("where order is promised nothing is taken from behind a gap", "shared/fabric/link.c", "l->r.in_order ? gap > 0 : ", "", "test_shared_registry"),
    ("a life that is past does not come back by a message that was late", "shared/fabric/registry.c", "        send_end_reason(b, m->rank, ended);\n        return;\n", "", "test_shared_cast"),
    ("a process that wakes when another one has its place is not needed any more", "shared/fabric/registry.c", "(!ended || ended->lost)", "!ended", "test_shared_cast"),
    ("what is member 0's alone is heard from nobody else", "shared/fabric/registry.c", "m->kind == MEET_END_PROCESS && m->rank == 0", "m->kind == MEET_END_PROCESS", "test_shared_cast"),
    ("whose thread does not turn says no sign of life", SEAT, "if (!s->frozen) s->send", "s->send", "test_shared_cast"),
    ("a gather that is over is not kept", "shared/fabric/registry.c", "if (k > 1) drop_value(b, before);", "", "test_shared_registry_sizes"),
    ("what is on its way to a peer is bounded", LANES, "if (p->credit < bytes) return false;", "", "test_shared_lanes"),
    ("a peer that sends more than its window is named", LANES, "p->kept_bytes + piece->bytes > l->window", "false", "test_shared_lanes"),
    ("credit that was not owed is none", LANES, "h->total > l->window - pair_of", "false && h->total > l->window - pair_of", "test_shared_lanes"),
    ("slow is not dead", LIVES, "    if (on) return false;\n", "", TCP),
    ("a wait ends if no rank works, although all are alive", LIVES, "return any_works || l->clock_s - l->since_s <= window_s;", "return true;", "test_decentral_collective"),
    ("a rank that is slow itself names no slow one", LIVES, "if (i != rank && !work[i]) return;", "if (i != rank) return;", "ring/test_slow_files.py"),
    # ---- who stands still
    ("rank 0 is silent when the rendezvous that it hosts is", LIVES, "    else if (rank_0_silent)\n", "    else if (false)\n", "test_decentral_collective"),
    ("a rank without any heartbeat yet counts as working", LIVES, "bool fresh = !heartbeat || ", "bool fresh = ", "ring/test_slow_files.py"),
    ("while a whole job is stopped no rank becomes silent", LIVES, "sooner(now - l->reported_s, step_s)", "now - l->reported_s", "test_decentral_collective"),
    ("a heartbeat of unknown age counts for nothing", LIVES, "l->stale_reports = 2", "l->stale_reports = 0", "test_decentral_collective"),
    ("nobody is silent while nobody listens", "shared/time/poll_clock.c", "c->lag_s += took_s - most_s;", "", "test_ps_still"),
    ("slow turns do not make a peer immortal", "shared/time/poll_clock.c", "fmax(COUNTED_SHARE * c->lost_s, c->pause_s)", "c->pause_s", "test_ps_still"),
    ("a launcher that was stopped kills nobody for it", "shared/launch/launch.c", "now = poll_clock_poll(&l->turns, now_seconds()), most_s", "now = now_seconds(), most_s",
     "test_shared_still"),
    # ---- deaths and restarts
    ("a silence and its kill are one death", CORE_C, "if (counted) c->given_up[i] = 0;", "counted = false;", EPOCHS),
    ("who dies again before one start takes another restart", CORE_C, "    *died = true;\n", "", EPOCHS),
    ("who has died does not come by late news", CORE_C, "if (n->pid && n->pid == m->dead) return;", "", EPOCHS),
    ("who is to begin anew is not on its way", CORE_C, ".old = m->old || m->present,", ".old = false,", EPOCHS),
    ("who is ready for an epoch that is over is not present", CORE_C, "m->present || r->epoch != c->epochs.epoch", "m->present", EPOCHS),
    ("a worker that is replaced takes a restart", CORE_C, "(counted || restarts_take(&c->epochs.restarts))", "true", EPOCHS),
    ("behind Ctrl-C nothing begins anew", CORE_C, "if (d->leaving && ", "if (false && ", EPOCHS),
    ("a rank that gives another one up is a death", "shared/launch/launch.c", "WEXITSTATUS(status) == EXIT_RUN_LOST", "false", "test_shared_launch_team"),
    ("why a rank is given up is why its run has failed", "shared/launch/stop.c", "    if (why) stop_says(stop_sayer, why);\n", "",
     "supervise/test_ring_processes.py StandsStill.test_that_another_one_gives_up"),
    ("those that have ended well are needed again", "shared/launch/launch.c", "if (l->children[i].ended_well && !l->children[i].pid && !l->kill_time_s)", "if (false)", "test_shared_launch_team"),
    # ---- who may join
    ("who connects has the pair of those who connect", "shared/fabric/curve.c", "return z->keyed && sodium_memcmp(r->frame[6], z->member, JOB_PAIR_BYTES) == 0;",
     "return z->keyed;", "test_ps_strangers"),
    ("the listeners' pair is not that of those who connect", "shared/fabric/job_key.c", '"starring connects"', '"starring listens"', "test_ps_strangers"),
    ("a token is compared", "shared/fabric/curve.c", "return sodium_memcmp(r->frame[7], z->token, strlen(z->token)) == 0;", "return true;", "test_ps_strangers"),
    ("a role that is started by hand needs a key", "shared/fabric/job_key.c", "(!given && insecure)", "!given", "test_shared_job_key"),
    # ---- groups of workers
    ("servers add in groups", IN_ORDER, ".group = c->group,", "", "test_ps_core"),
    ("a group's sum is rounded before others are added", "ps/server/key_pass.c", ".to = over ? a->dtype : DT_F32", ".to = DT_F32", "test_ps_sum"),
    # ---- what a topology says of itself
    ("a star whose steps lack gradients says why it differs", "ps/star.c", "if (!consistency_is_sync(rule)) out->differs = rule.row->differs;", "",
     "test_shared_config"),
    ("the loss of local steps is told to be one rank's", LOCAL_C, "if (c->local_steps.steps) w->loss_of = LOSS_OF_RANK_0;", "(void)c, (void)w;",
     "test_shared_config"),
    # ---- what people give it
    ("a tied flag with two matrices is an untied model", HF_DIR, "r->spec.tied = s->tied = same;", "(void)same;", HF),
    ("names behind wrappers are the model's", HF_DIR, "begins = begins && behind;", "begins = false;", HF),
    ("a shard that did not arrive is missed", HF_DIR, "if (here >= of) return 0;", "return 0;", HF),
    ("a directory without weights is no model", "shared/hf/hf_look.c", ": refuse_dir(dir, config);", ": config ? 0 : refuse_dir(dir, config);", HF),
    ("a value of a file's weights is a number", HF_DIR, "if (!bad) return 0;", "return 0;", HF),
    ("a shard lies at or below its index", HF_DIR, "if (!n || (n == 2", "if (!n || (n == 9", HF),
    ("an alternative of a brace matches a file", DATA_FILES, "if (files) return 0;", "if (files || pattern != path) return 0;", DATA),
    ("held-out data beside training files is not overlooked", DATA_FILES, "if (!split && refuse_held(", "if (false && refuse_held(", DATA),
    ("both parts have tokens of one kind", "shared/data/data.c", "if (val && check_same_tokens(", "if (false && check_same_tokens(", DATA),
    ("what is held out is not trained on", DATA_FILES, "if (p == (part == PART_TRAIN ? FOR_TRAINING : held))", "if (p == FOR_TRAINING || p == held)", DATA),
    ("files of a pattern are in the order of their names", DATA_FILES, "if (f->count) qsort(f->paths, (size_t)f->count, sizeof *f->paths, by_text);\n    for (",
     "for (", DATA),
    ("zero bytes are no text", "shared/data/data_stream.c", "else if (zeros[0] + zeros[1])", "else if (false)", DATA),
    ("a typographic quote begins no name", "shared/core/json.c", "look_alike(s->p) ? 0 : strcspn", "strcspn", "test_shared_config_json"),
    ("a text for off is on where DeepSpeed takes it so", "shared/config/config_read.c", "known_is_off(k, v, key_converts(k->path))",
     "known_is_off(k, v, true)", "test_shared_config_types"),
    ("an unknown argument of an optimizer is an error", "shared/config/config_read.c", "is_constructor(level) && !r->lenient", "false",
     "test_shared_config"),
    ("a rate that fp32 rounds to 0 is none", "shared/config/config_values.c", "x != 0 && (float)x == 0", "false", "test_shared_config"),
    ("a pointer is not the file", "shared/hf/file_kind.c", "version https://git-lfs.github.com/spec/", "Version https://git-lfs.github.com/spec/", DATA),
    # ---- updates on arrival
    ("a version counts pushes, not updates", ON_ARRIVAL, "k->version += s->pushes - 1;", "", ARRIVALS),
    ("the moments count updates, not pushes", ON_ARRIVAL, "k->skew -= s->pushes - 1;", "", ARRIVALS),
    ("the mean of K is over their shares", ON_ARRIVAL, "1.0 / (s->weight * (double)s->unit)", "1.0 / (double)s->unit", ARRIVALS),
    ("nobody leads by more than max_lead", ON_ARRIVAL, "< want - lead)", "< want - lead - 1)", ARRIVALS),
    ("an age of two halves the rate", ON_ARRIVAL, "age > 1 ? 1.0", "age > 2 ? 1.0", ARRIVALS),
    ("delay compensation goes from the old weights to the new ones", ON_ARRIVAL, "now[i] - then[i]", "then[i] - now[i]", ARRIVALS),
    ("a worker without batches is waited for by nobody", "ps/scheduler/rounds.c",
     "if (taken.flags & WIRE_FINAL) report_no_more_pushes(c, w);", "", ARRIVALS),
    ("a gradient that is too old is dropped", ON_ARRIVAL, "!(flags & WIRE_SKIP) && !is_too_old(c, age)",
     "!(flags & WIRE_SKIP)", ARRIVALS),
    ("a replayed worker reads the version that it has read", "ps/server/push_replayed.c", "sent_step == want || version == k->version",
     "sent_step == want || true", ARRIVALS),
    ("a replayed push waits until all have read what it replaces", "ps/server/push_replayed.c", " || version_needed(c, k)", "", "test_ps_replay"),
    # ---- a table of gradients by worker
    ("a fast worker weighs no more than a slow one", RINGLEADER, "(float)(1.0 / r->w[worker].count)", "1.0f", "test_ps_ringleader"),
    ("a worker has one update in a round", RINGLEADER, "if (!x->updated && is_full(r))", "if (is_full(r))", "test_ps_ringleader"),
    ("a worker computes with one model in a round", RINGLEADER, "    if (r->begun) m->payload = model_of(c, k, worker);\n", "", "test_ps_ringleader"),
    ("a resent answer has the version of the first", RINGLEADER, "    m->header.version = r->w[worker].version;\n", "", "test_ps_ringleader"),
    ("a push has a position when all shards have it", "ps/scheduler/rounds.c", "++c->arrived[w] == c->full_shards", "++c->arrived[w] >= 1", "test_ps_ringleader"),
    ("a push has a position when all keys have it", RINGLEADER, "if (++part->keys < c->count) return 0;", "part->keys++;", "test_ps_ringleader"),
    # ---- steps that go on without those that are late
    ("a gradient counts only if the set has its worker", PUSH_SET, "        if (!belongs) continue;\n", "", LATE),
    ("the sum of n of N is scaled by N/n", PUSH_SET, ".scale = set_scale(&share)", ".scale = 1.0f", LATE),
    ("a late worker goes on at the step that is open", WORKER, "(h->step > asked->pull_want && !consistency_drops(c->o.rule))", "h->step > asked->pull_want", LATE),
    ("a gradient's buffer is free when its push was requested", WORKER, "unit_at(c, u, step)->handed >= count && ", "", "test_ps_shard"),
    ("pushes that credits allow leave before a jump", WORKER, "    pump(c, now);\n    c->jump = step;", "    c->jump = step;", LATE),
    ("what has not left of a step that is over does not leave", WORKER,
     "        if (s->sending == SEND_QUEUED && !s->init) drop_queued(c, key, s, now);\n", "", LATE),
    ("backup:B takes N-B, and no more that have come", "ps/agree/step_set.c", "s->o.exact ? set : complete",
     "complete", SET),
    ("a quorum waits for the window of grace", "ps/agree/step_set.c", "now - s->enough_s >= s->o.grace_s", "true", SET),
    ("a set is fixed of workers whose every key has come", "ps/agree/step_set.c", "complete &= s->arrived[i];", "complete &= s->members;", SET),
    ("workers that do not wait for each other begin together", "shared/train/train.c", "if (independent && !x->c", "if (false && !x->c",
     "evaluation/test_evaluation.py Evaluation.test_workers_that_do_not_wait_begin_with_worker_0"),
    # ---- bounded delay by clock
    ("no version is older than S updates", IN_ORDER, "k->step >= k->pulls[worker].least", "k->step + 1 >= k->pulls[worker].least", LEAD),
    ("behind a drained step nothing older is read", "ps/server/server_core.c", "base = h->flags & WIRE_DRAINS ? want : p->base",
     "base = p->base", LEAD),
    ("the last pull is of the last update", "ps/server/server_core.c", ".least = final ? want : least", ".least = least", LEAD),
    ("weights are kept before an update replaces them", IN_ORDER, "    if (*at_once) keep_old(c, k);\n", "", LEAD),
    ("what is needed first leaves first", WORKER, "u = 0; u < c->o.map->units && c->queued > 0; u++",
     "u = c->o.layout->count - 1; u >= 0 && c->queued > 0; u--",
     "star/test_trace.py Urgent"),
    ("all but the first worker's gradients may wait for their turn", IN_ORDER, "(c->workers - !consistency_of(c).lead) * gradients",
     "(c->workers - 1 - !consistency_of(c).lead) * gradients",
     "star/test_late.py Held"),
    ("oldest reads are of version t - S", "ps/server/server_state.c", "if (c->rule.oldest) return p->least < k->step ? p->least : k->step;",
     "if (c->rule.oldest) return k->step;", LEAD),
    ("a replayed worker reads the weights of the recorded step", "ps/server/server_state.c",
     "if (k->old_version[old_of(c, t)] == (int64_t)a->version) return t;", "return k->step;", LEAD),
    ("open steps count as updates in a gradient's age", IN_ORDER, "k->version - h->version + h->step - k->step", "k->version - h->version", LEAD),
    ("where a step is clipped all wait for its end", "ps/job/consistency.c", "&& !commit_round(config) ", "", "test_ps_consistency"),
    ("a step that is kept is computed on by the next one", "shared/launch/local.c", "    if (base->plan.drain) t->drained = t->steps;\n", "",
     DELAY + " GoingOn.test_resumed"),
    # ---- what is kept, and what is lost
    ("what a checkpoint keeps of a key is copied before its next update", "ps/server/keeper.c", "memcpy(copy->master, x->buf->master, bytes);", "",
     "test_ps_keeper"),
    ("a run that ends by a death says what it costs", "shared/launch/run.c", "if (status == EXIT_RUN_FAILED) run_say_lost", "if (0) run_say_lost",
     "recovery/test_restart.py Restart.test_what_is_lost"),
    # ---- two units at a time
    ("a gradient that waits in a shared buffer is copied", PUSH_UNITS, "if (!place->frame) {  // a copy", "if (false) {  // a copy", UNITS),
    ("micro-batches are added to those before", PUSH_UNITS, ".first = m->at == 0", ".first = true", UNITS),
    ("of a copy the credit comes back once it is summed", WORKER, "} else if (!held && c->credits.held >= bytes) {", "} else if (false) {", UNITS),
    ("a worker's micro-batches come in their order", PUSH_UNITS, "if (h->batch != ((const struct micro_key *)k->own)->next[h->rank])", "if (false)", UNITS),
    # ---- a wake-up costs what has changed
    ("what is asked of a unit's keys is counted", WORKER, "    if (l->have > 0) return;\n", "", MANY),
    ("keys of a unit that have left are not looked at again", WORKER, "            u->next += u->next == key;\n", "", MANY),
    # ---- the dry run's graph of a step
    ("weights are gathered in the order of the next forward", "decentral/zero/zero_tasks.c", "launch_update(x, u);", "launch_update(x, x->z->opt.layout->count - 1 - u);", STEP),
    ("a gather of the schedule waits for its slot", "decentral/zero/zero_tasks.c", "if (begun) step_tasks_need(t, &t->list[first], idle);", "", STEP),
    ("a repeated gather of a group's copy stays in it", "decentral/zero/zero_tasks.c", "if (zero_hpz(&z->opt) && (again || frozen)) {", "if (false) {", STEP),
    ("what a worker's own server holds moves on no wire", "ps/star.c", "if (p->shard / m->threads != rank) continue;", "continue;", STEP),
    ("with clipping nothing is pulled before the decision", "ps/job/unit_moves.c", "if (commits && !x->alone) step_tasks_need", "if (false) step_tasks_need", STEP),
    ("the middle micro-batches count", "shared/model/step_tasks.c", "t->micro == 1 && listed < all ? all - 2 : 1", "1", "test_decentral_schedule"),

    # ---- LoRA
    ("a matrix of an adapter has peft's name", HF_DIR, "                 tensor->adapter);", "                 'A' + 'B' - tensor->adapter);", "test_shared_adapter"),
    ("an adapter that the files have is not drawn", HF_DIR, "if (r && !r->adapter) model_init", "if (r) model_init", "files/test_adapters.py"),
    ("an adapter has no tensor that no module takes", HF_DIR, "if (r->all[i].file == r->adapter && !r->all[i].used)", "if (false)", "test_shared_adapter"),
    ("a feature of peft that is on is refused", "shared/hf/hf_adapter.c", "    if (is_off(j)) return;\n", "    return;\n", "test_shared_adapter"),
    ("a short name names no module without an adapter", "shared/hf/hf_adapter.c", "if (named.mask[l] & ~s->lora.mask[l]) return module;", "", "test_shared_adapter"),
    ("an adapter's gradient is scaled by alpha / r", "shared/model/layers.c", "    scale_by_alpha(m, m->d_h);\n", "", "test_shared_parity"),
    ("an adapter of a recomputed block is computed again", "shared/model/layers.c",
     "        adapters_forward(m, &b->w_down, v, NULL, b->act);\n", "", LORA),
    ("each step of stage 3 gathers what is frozen", "decentral/zero/zero.c", "    if (zero_shards_frozen(z)) unit_schedule_invalidate(&z->frozen.schedule);", "", LORA),
    ("each step of a star's worker pulls what is frozen", "ps/worker/worker.c", "    if (w->frozen) unit_slots_invalidate(w->frozen);", "", LORA),
    ("an adapter's input is kept", "shared/model/activations.c", "    return adapted || !m->spec.lora.r;", "    return !m->spec.lora.r;", LORA),
    ("a checkpoint belongs to its frozen weights", "shared/state/identity.c", "if (s->layout && s->layout->model) identity_put", "if (false) identity_put", LORA),
    # ---- gossip
    ("a rank gives its neighbours' weights the same weight as its own", GOSSIP_C, "1.0f / (float)count", "1.0f / 2.0f", GOSSIP),
    ("the exponential graph doubles its distance each step", GOSSIP_C, "1 << step % log2_up(size)", "1", GOSSIP),
    ("the static exponential graph has all its distances in each step", GOSSIP_C, "distance[k] = 1 << k", "distance[k] = 1 + k", GOSSIP),
    ("sums are in rank order", GOSSIP_C, "at > 0 && rank[at - 1] > from", "at > 0 && rank[at - 1] < from", GOSSIP),
    ("the last step travels", GOSSIP_C, "        if (g->stop_received[k] < g->last_step) g->last_step = g->stop_received[k];\n", "        (void)k;\n", GOSSIP),
    # ---- reductions
    ("a NaN is the least and the largest of all", "kernels/cpu/ops/reduce.c", "total[j] != total[j] || total[j] <= x[j]", "total[j] <= x[j]", REDUCE),
    ("a product of integers wraps", "kernels/cpu/ops/reduce.c", "JOIN(join_i64, int64_t, uint64_t)", "JOIN(join_i64, int64_t, double)", REDUCE),
    ("one input alone is 0 or 1 of a logical or", "kernels/cpu/ops/reduce.c", "if (k == 0 && a->how != REDUCTION_LOR) continue;",
     "if (k == 0) continue;", REDUCE),
    ("ranks agree on how they reduce", "decentral/collective/collective_hub.c", "&& s->reduction == first->reduction ", "",
     "test_decentral_collective"),
    ("each step of a call reduces as the call does", "decentral/collective/collective_plan.c", ".how = c->reduction", ".how = REDUCTION_SUM",
     "bench/test_reductions.py"),
    # ---- local steps
    ("elastic workers keep their own weights", LOCAL_C, "    if (elastic(d) && d->begun) return 0;\n", "", LOCAL),
    ("a mean is a sum over N", LOCAL_C, "(float)(summed ? c->workers : 1)", "1.0f", LOCAL),
    ("ranks exchange at the end of a round alone", LOCAL_C, "if (!t->plan.not_resumable && exchange(d, in, out)) return -1;",
     "if (exchange(d, in, out)) return -1;", LOCAL),
    ("elastic anchor and weights move at one moment", LOCAL_C, "-1, d->master[u], n);\n    if (elastic(d)) {",
     "-1, d->master[u], n);\n    if (false) {", LOCAL),
)]


def found(row):
    """Why a row does not fit the tree; "" where it does."""
    path = os.path.join(TOP, row.file)
    if not os.path.exists(path):
        return f"{row.file} is not there"
    with open(path, encoding="utf-8") as f:
        times = f.read().count(row.text)
    if times != 1:
        return f"{row.text.strip()!r} is {times} times in {row.file}, not once: write the row anew"
    name = row.test.split()[0]
    return "" if name.endswith(".py") and os.path.exists(os.path.join(TOP, "tests", name)) or name.startswith("test_") else f"there is no test {name}"


def chosen(words):
    return [row for row in RULES if not words or any(word in " ".join((row.rule, row.file, row.test)) for word in words)]


class Copy:
    """A copy of the tree in which rules are broken."""

    def __init__(self, folder, limit):
        self.top, self.limit = os.path.join(folder, "tree"), limit

        def ignore(at, names):
            return [name for name in names if name in LEFT_OUT.get(os.path.relpath(at, TOP).replace(".", "", 1), ())]
        shutil.copytree(TOP, self.top, ignore=ignore, symlinks=True)

    def make(self, test):
        """None, or the end of what the compiler said."""
        # The variables that a make sets for its own children belong to its own tree.
        env = {key: value for key, value in os.environ.items() if key not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
        target = "build/starring" if test.split()[0].endswith(".py") else "build/tests/" + test
        p = subprocess.run(["make", f"-j{os.cpu_count()}", target], cwd=self.top, env=env, stdin=subprocess.DEVNULL,
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        return None if p.returncode == 0 else p.stdout[-2000:]

    def passes(self, test):
        """Whether the test, as built last, passes; in how many seconds."""
        name, *cases = test.split()
        argv = [sys.executable, "tests/" + name, *cases] if name.endswith(".py") else ["build/tests/" + name]
        began = time.monotonic()
        p = subprocess.Popen(argv, cwd=self.top, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                             env={**os.environ, "STARRING": os.path.join(self.top, "build", "starring")}, start_new_session=True)
        try:
            status = p.wait(self.limit)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            try:
                os.killpg(p.pid, signal.SIGKILL)  # and what it has started
            except ProcessLookupError:
                pass
            p.wait()
        return status == 0, time.monotonic() - began

    def broken(self, row):
        """The outcome of one row."""
        path = os.path.join(self.top, row.file)
        with open(path, encoding="utf-8") as f:
            whole = f.read()
        with open(path, "w", encoding="utf-8") as f:
            f.write(whole.replace(row.text, row.instead))
        try:
            said = self.make(row.test)
            if said:
                return f"DOES NOT BUILD: {said}"
            passed, seconds = self.passes(row.test)
            hangs = "still running after " if seconds >= self.limit else ""
            return "SURVIVED" if passed else f"caught ({hangs}{seconds:.0f} s)"
        finally:
            with open(path, "w", encoding="utf-8") as f:
                f.write(whole)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("words", metavar="WORD", nargs="*", help="rows that have one of these words")
    ap.add_argument("--list", action="store_true", help="say the rows, build nothing")
    ap.add_argument("--limit", type=float, metavar="SECONDS", default=120.0, help="of a test (default %(default)g)")
    args = ap.parse_args()
    rows = chosen(args.words)
    if not rows:
        ap.error("no row has one of these words")
    stale = {row: why for row in rows if (why := found(row))}
    if args.list:
        for row in rows:
            print(f"{row.rule}\n    {row.file}  {row.test}" + (f"\n    {stale[row]}" if row in stale else ""))
        return 1 if stale else 0
    ends = collections.Counter()
    with tempfile.TemporaryDirectory(prefix="starring-mutate-") as folder:
        copy = Copy(folder, args.limit)
        sound = {}
        for test in dict.fromkeys(row.test for row in rows):
            said = copy.make(test)
            sound[test], seconds = (False, 0) if said else copy.passes(test)
            print(f"unchanged: {test}: " + (f"passes ({seconds:.0f} s)" if sound[test] else f"FAILS BY ITSELF {said or ''}"), flush=True)
        for row in rows:
            end = stale.get(row) or (copy.broken(row) if sound[row.test] else "its test fails by itself")
            ends["caught" if end.startswith("caught") else "not"] += 1
            print(f"{end}: {row.rule} ({row.file}, {row.test})", flush=True)
    print(f"{ends['caught']} of {len(rows)} broken rules were caught" + ("" if not ends["not"] else f", {ends['not']} WERE NOT"))
    return 1 if ends["not"] else 0


if __name__ == "__main__":
    sys.exit(main())
