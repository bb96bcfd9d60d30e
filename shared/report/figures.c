// The rows of figures: a rank's report, worker 0's facts, a step, the summary. `make docs` writes tables of them.
#include "shared/report/figures.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/config/config.h"
#include "shared/core/error.h"
#include "shared/core/json.h"
#include "shared/core/text.h"
#include "shared/core/topology_row.h"
#include "shared/device/device_facts.h"
#include "shared/time/stall_report.h"

// ---------------------------------------------------------------- a rank's report
// The report, and values derived from it or read from the machine.
struct rank_document {
    struct rank_report r;
    char job[REPORT_JOB_MAX];
    struct machine_facts machine;
    double predicted_sent, predicted_received, clock_error_s;
    size_t predicted_bytes, device_bytes;
    bool pairs, offloads, keeps;
};
#define REPORT(from) (&((const struct rank_document *)(from))->r)

static void put_classes(cJSON *o, const char *key, const size_t bytes[MEM_CLASSES]) {
    cJSON *classes = cJSON_AddObjectToObject(o, key);
    for (int c = 0; c < MEM_CLASSES; c++)
        json_put(classes, mem_class_name((enum mem_class)c), (double)bytes[c]);
}
static void put_predicted(cJSON *o, const char *key, const void *from) {
    put_classes(o, key, REPORT(from)->memory.predicted_bytes);
}
static void put_peak(cJSON *o, const char *key, const void *from) {
    put_classes(o, key, REPORT(from)->peak_bytes);
}

// The bytes of each phase. The counters hold the bytes of all steps, and those of the steps before the second phase.
static void put_phases(cJSON *o, const char *key, const void *from) {
    const struct rank_report *r = &((const struct rank_document *)from)->r;
    const struct wire_prediction *w = &r->wire;
    const struct wire_later *later = &r->wire_later;
    const struct {
        const char *name;
        int64_t steps;
        uint64_t predicted_sent, predicted_received;
        double sent, received;
    } phases[] = {{"warm-up", r->steps - later->steps, w->sent_per_step, w->received_per_step,
                   (double)later->sent, (double)later->received},
                  {"compressed", later->steps, w->later.sent_per_step, w->later.received_per_step,
                   r->sent_per_step * (double)r->steps - (double)later->sent,
                   r->received_per_step * (double)r->steps - (double)later->received}};
    cJSON *list = later->steps ? cJSON_AddArrayToObject(o, key) : cJSON_AddNullToObject(o, key);
    for (int i = 0; i < 2 && later->steps; i++) {
        cJSON *p = cJSON_CreateObject();
        double steps = (double)phases[i].steps;
        cJSON_AddItemToArray(list, p);
        cJSON_AddStringToObject(p, "name", phases[i].name);
        json_put(p, "steps", steps);
        json_put(p, "predicted_sent", (double)phases[i].predicted_sent);
        json_put(p, "sent_per_step", steps > 0 ? phases[i].sent / steps : 0);
        json_put(p, "predicted_received", (double)phases[i].predicted_received);
        json_put(p, "received_per_step", steps > 0 ? phases[i].received / steps : 0);
    }
}

static void put_faults(cJSON *o, const char *key, const void *from) {
    static const char *const names[WIRE_FAULTS] = {"messages", "lost", "twice", "overtaken"};
    cJSON *faults = cJSON_AddObjectToObject(o, key);
    for (int i = 0; i < WIRE_FAULTS; i++) json_put(faults, names[i], (double)REPORT(from)->faults[i]);
}

static void put_stalls(cJSON *o, const char *key, const void *from) {
    (void)key;  // stall_report_put writes its own keys
    stall_report_put(o, REPORT(from)->stall_report);
}

static void put_histogram(cJSON *o, const char *key, const void *from) {
    const struct staleness *s = &REPORT(from)->staleness;
    cJSON *histogram = cJSON_AddArrayToObject(o, key);
    int last = 63;
    while (last >= 0 && !s->count[last]) last--;
    for (int i = 0; i <= last; i++) cJSON_AddItemToArray(histogram, cJSON_CreateNumber((double)s->count[i]));
}

static void put_device(cJSON *o, const char *key, const void *from) {
    const struct rank_report *r = REPORT(from);
    cJSON *d = device_facts_json(&r->device);
    cJSON_AddStringToObject(d, "host", ((const struct rank_document *)from)->machine.host);
    json_put(d, "ledger_bytes", (double)r->device_memory.ledger_bytes);
    json_put(d, "workspace_bytes", (double)r->device_memory.workspace_bytes);
    json_put(d, "used_bytes", (double)r->device_memory.used_bytes);
    json_put(d, "free_bytes", (double)r->device_memory.free_bytes);
    cJSON_AddItemToObject(o, key, d);
}

#define ALSO(m)     FIGURE_AT(rank_document, m)
#define AT(m)       ALSO(r.m)
#define IF(m)       FIGURE_IF(rank_document, m)
#define MADE(f)     .kind = FIGURE_MADE, .put = f
#define OBJECT      .kind = FIGURE_OBJECT
#define OF_A_BUDGET IF(r.independent), .when = "ps:async", .excluded_from = NOT_OF_SERVERS
#define OF_THE_LATE IF(r.may_be_left_out), .when = "`ps:backup`, `ps:quorum`", .excluded_from = NOT_OF_SERVERS
#define OF_THE_DROPPED \
    IF(r.drops), .when = "`max_staleness`, `ps:backup`, `ps:quorum`", .excluded_from = NOT_OF_WORKERS
#define PREDICTED(t) .predicted = true, .title = t
#define PER_STEP     "per step"
#define OF_PHASES(t) .type = #t, .when = "OneBitAdam", .excluded_from = NOT_OF_SERVERS
#define MEAN(m)      AT(m), .join = JOIN_MEAN_OF_WORKERS
#define CLASS(w)     .type = "integer", .compared_as = w
#define WORKER_ONLY  .excluded_from = NOT_OF_SERVERS
#define SERVER_ONLY  .excluded_from = NOT_OF_WORKERS

static const struct figure of_ranks[] = {
    {"rank", NULL, "within its role", AT(rank), .predicted = true, .in = IN_MEMORY | IN_WIRE},
    {"role", NULL, "`worker` or `server`", AT(role), .type = "string", .predicted = true,
     .in = IN_MEMORY | IN_WIRE | IN_TEXTBOOK},
    {"job", NULL,
     "of a star: the job's number, 16 hexadecimal digits, equal in all reports of one job; else null",
     ALSO(job)},
    {"predicted", NULL, "memory by class, computed before the run", MADE(put_predicted), .predicted = true,
     .in = IN_MEMORY},
    {"predicted.*", "bytes", "the classes of `peak`", .type = "integer", .predicted = true},
    {"predicted_bytes", "bytes", "device memory, predicted: `predicted` without `pinned` and `offload`",
     ALSO(predicted_bytes), PREDICTED("memory"), .measured = "device_bytes", .in = IN_MEMORY},
    {"pinned_bytes", "bytes", "`predicted.pinned`", AT(memory.predicted_bytes[MEM_HOST]), PREDICTED("pinned"),
     .measured = "peak.pinned", .note = "page-locked host memory, not in the memory above", .in = IN_MEMORY},
    {"offload_bytes", "bytes", "`predicted.offload`", AT(memory.predicted_bytes[MEM_OFFLOAD]),
     PREDICTED("offload"), .measured = "peak.offload",
     .note = "host memory for state that is not on the device", .in = IN_MEMORY},
    {"peak", NULL, "memory by class, the most at one time as the ledger counted it", MADE(put_peak),
     .in = IN_MEMORY},
    {"peak.parameter", "bytes", "weights, in 16 bits or fp32", CLASS("weights")},
    {"peak.gradient", "bytes", "gradients; on a server also the fp32 sums", CLASS("gradients")},
    {"peak.master", "bytes", NULL, CLASS("fp32 masters")},
    {"peak.optimizer", "bytes", "states of the optimizer", CLASS("moments")},
    {"peak.activation", "bytes", NULL, CLASS("activations")},
    {"peak.communication", "bytes", "buffers of units that are in use or moving",
     CLASS("communication buffers")},
    {"peak.workspace", "bytes", "workspaces of operations", CLASS("workspace")},
    {"peak.server", "bytes", "other state of a server: what delay compensation keeps",
     CLASS("other server state")},
    {"peak.checkpoint", "bytes", "copies of state until they are on disk",
     CLASS("copy for a snapshot or checkpoint")},
    {"peak.pinned", "bytes", "page-locked host memory; no total of device memory includes it",
     .type = "integer", .join = JOIN_BOTH, .to = "totals.pinned_bytes"},
    {"peak.offload", "bytes",
     "host memory for state that is not kept on the device; no total of device memory includes it",
     .type = "integer", .join = JOIN_BOTH, .to = "totals.offload_bytes"},
    {"device_bytes", "bytes",
     "device memory, the most at one time as the ledger counted it: `peak` without `pinned` and "
     "`offload`",
     ALSO(device_bytes), .in = IN_MEMORY, .join = JOIN_BOTH, .to = "totals.memory_bytes",
     .compared_as = "device memory", .title = "memory"},
    {"formula_bytes", "bytes", "the textbook's figure, without activations", AT(memory.formula_bytes),
     .predicted = true, .in = IN_MEMORY | IN_TEXTBOOK},
#define RANK_ROW(type, member, ...) {__VA_ARGS__, AT(member)},
    RANK_FIGURES(RANK_ROW)
#undef RANK_ROW
        {"predicted_sent", "bytes", "payload sent, predicted, mean over the steps", ALSO(predicted_sent),
         PREDICTED("sent"), .measured = "sent_per_step", .note = PER_STEP, .in = IN_WIRE | IN_TEXTBOOK},
    {"predicted_received", "bytes", "payload received, predicted, mean over the steps",
     ALSO(predicted_received), PREDICTED("received"), .measured = "received_per_step", .note = PER_STEP,
     .in = IN_WIRE},
    {"messages", NULL, "messages with payload that are sent per step, predicted", AT(wire.messages_per_step),
     IF(r.wire.messages_per_step), .when = "`zero:*`, `gossip`", PREDICTED("messages"),
     .note = "sent " PER_STEP, .in = IN_WIRE, WORKER_ONLY},
    {"across", NULL,
     "the part of the payload that goes to ranks of other groups of a ring ([ring.md](ring.md#groups))",
     OBJECT, IF(r.wire.group), .when = "with `reduce_group`", PREDICTED("across"), .in = IN_WIRE,
     WORKER_ONLY},
    {"across.group", NULL, "ranks of a group", AT(wire.group), PREDICTED("group"), .note = "ranks"},
    {"across.predicted_sent", "bytes", NULL, AT(wire.across_sent_per_step), PREDICTED("sent"),
     .measured = "across.sent_per_step", .note = PER_STEP " out of a group"},
    {"across.predicted_received", "bytes", NULL, AT(wire.across_received_per_step), PREDICTED("received"),
     .measured = "across.received_per_step", .note = PER_STEP " from other groups"},
    {"across.predicted_sent_ungrouped", "bytes", "what would be sent there without exchanging in groups",
     AT(wire.flat_across_sent_per_step), PREDICTED("ungrouped"), .note = "sent " PER_STEP " without groups"},
    {"across.messages", NULL, "`messages` of those to other groups", AT(wire.messages_across_per_step),
     PREDICTED("messages"), .note = "sent " PER_STEP},
    {"repeated", NULL,
     "messages that were sent again in the whole run because no answer arrived (`ps:*`). Their bytes are in "
     "`control_*` too",
     OBJECT, .in = IN_WIRE},
    {"faults", NULL, "messages that arrived at this rank's sockets, and the faults injected into them",
     MADE(put_faults), .type = "object", IF(r.faults[FAULT_MESSAGES]), .when = "`--fault`", .in = IN_WIRE},
    {"faults.*", NULL, "`messages`, of which `lost`, `twice`, `overtaken`", .type = "integer"},
    {"local", NULL,
     "gradients and weights that a worker and the server next to it exchange through shared memory; in none of "
     "the figures above",
     OBJECT, IF(pairs), .when = "`--servers-on workers`", PREDICTED("local"), .in = IN_WIRE},
    {"local.predicted_sent", "bytes", NULL, AT(wire.local_sent_per_step), PREDICTED("sent"),
     .measured = "local.sent_per_step", .note = PER_STEP " in shared memory"},
    {"local.predicted_received", "bytes", NULL, AT(wire.local_received_per_step), PREDICTED("received"),
     .measured = "local.received_per_step", .note = PER_STEP " in shared memory"},
    {"offload", NULL,
     "what a rank moves between device and host, and between host and disk "
     "([ring.md](ring.md#offload)), in none of the figures above",
     OBJECT, IF(offloads), .when = "`offload_optimizer`, `offload_param`", PREDICTED("offload"),
     .in = IN_WIRE, WORKER_ONLY},
    {"offload.predicted_down", "bytes", "per step, predicted", AT(wire.offload.down), PREDICTED("to host"),
     .measured = "offload.down_per_step", .note = PER_STEP},
    {"offload.predicted_up", "bytes", "per step, predicted", AT(wire.offload.up), PREDICTED("from host"),
     .measured = "offload.up_per_step", .note = PER_STEP},
    {"offload.predicted_read", "bytes", "per step, predicted", AT(wire.offload.read), PREDICTED("read"),
     .measured = "offload.read_per_step", .note = PER_STEP " from disk"},
    {"offload.predicted_written", "bytes", "per step, predicted", AT(wire.offload.written),
     PREDICTED("written"), .measured = "offload.written_per_step", .note = PER_STEP " to disk"},
    {"phases", NULL, "bytes of the steps before and after `freeze_step` of OneBitAdam; else null",
     MADE(put_phases), .type = "list or null", .in = IN_WIRE},
    {"phases[].name", NULL, "`warm-up`, `compressed`", OF_PHASES(string)},
    {"phases[].steps", "steps", NULL, OF_PHASES(integer)},
    {"phases[].predicted_*", "bytes", "`sent`, `received`: predicted, per step of the phase",
     OF_PHASES(integer)},
    {"phases[].*_per_step", "bytes", "`sent`, `received`: measured, per step of the phase",
     OF_PHASES(number)},
    {"time", NULL,
     "as in summary.json, of this rank only, before times in which other ranks were stopped are "
     "attributed to them. All 0 on a server, which has no steps of its own",
     OBJECT},
    {"time.forward", "s", "the compute stream was busy with the forward pass", MEAN(time.forward),
     .title = "forward", .compared_as = "forward"},
    {"time.backward", "s",
     "the compute stream was busy with the backward pass, including logits and loss, which the head "
     "computes there",
     MEAN(time.backward), .title = "backward", .compared_as = "backward"},
    {"time.optimizer", "s",
     "the compute stream was busy with the update, including the norm and the decision to skip; 0 in "
     "a star, whose servers update",
     MEAN(time.optimizer), .title = "optimizer", .compared_as = "optimizer"},
    {"time.wait", "s",
     "computing waited for a transfer for which some rank was not ready, or during which a rank was "
     "stopped",
     MEAN(time.wait), .title = "wait", .compared_as = "waiting for peers"},
    {"time.comm_exposed", "s",
     "computing waited for a transfer for which all ranks were ready and running, or the compute "
     "stream handed a gradient over",
     MEAN(time.comm_exposed), .title = "exposed", .compared_as = "exposed communication"},
    {"time.host", "s",
     "nothing was computed, for a reason other than a transfer: the host's work between operations, "
     "or threads that waited for a core. Also the time of a transfer in which this rank's own process "
     "was stopped",
     MEAN(time.host), .title = "host", .compared_as = "host"},
    {"time.data", "s",
     "the compute stream was idle until the next batch was made. Batches that are made while it "
     "computes cost nothing",
     MEAN(time.data), .title = "data"},
    {"time.total", "s", "the steps by the clock; the parts add up to it", MEAN(time.total)},
    {"time.comm_overlapped", "s",
     "transfers, with all ranks ready, during which computing continued; not one of the parts",
     MEAN(time.comm_overlapped), .title = "and overlapped"},
    {"time.check", NULL,
     "sum of the parts / time of the steps by the loop's own clock. More than 1% off 1 is a warning: "
     "the split lost time or counted it twice. In summary.json: the worker's that is farthest from 1",
     AT(time_check), .to = "time.check"},
    {"time.clock_error_s", "s",
     "largest error of times that ranks have sent to each other; 0 if all share one clock",
     ALSO(clock_error_s), .join = JOIN_MOST_OF_WORKERS},
    {"moments", NULL,
     "times from which summary.json's `waited_for` and `stood_still` are computed, on the clock of "
     "`trace.json`",
     MADE(put_stalls), .type = "object"},
    {"checkpoints", NULL, NULL, OBJECT, IF(keeps), .when = "`--checkpoint-every`", WORKER_ONLY},
    {"checkpoints.written", NULL, "complete checkpoints", AT(checkpoints.written), .join = JOIN_FIRST},
    {"checkpoints.failed", NULL, "checkpoints that were given up, for example because the disk was full",
     AT(checkpoints.failed), .join = JOIN_FIRST},
    {"checkpoints.bytes", "bytes", "of all files", AT(checkpoints.bytes), .join = JOIN_SUM},
    {"checkpoints.seconds_writing", "s",
     "time to write all checkpoints to disk. Ranks write at the same time: summary.json has the "
     "slowest rank's",
     AT(checkpoints.seconds_writing), .join = JOIN_MOST},
    {"checkpoints.slowed", NULL, "how often the loop or the device waited for a checkpoint",
     AT(checkpoints.slowed)},
    {"checkpoints.slowed_seconds", "s", "how long they waited, in all", AT(checkpoints.slowed_seconds)},
    {"checkpoints.slowed_most", "s", "the longest wait", AT(checkpoints.slowed_most), .join = JOIN_MOST,
     .to = "checkpoints.step_slowed_seconds.max"},
    {"checkpoints.why", NULL, "why the last checkpoint that was given up failed; null: none was given up",
     AT(checkpoints.why), .to = "checkpoints.why"},
    {"staleness", NULL,
     "a gradient's staleness: the updates between the weights that it was computed on and its own "
     "update. A worker's report counts its own gradients that were applied, a server's those of all "
     "workers. Empty unless `ps:*`",
     OBJECT},
    {"staleness.histogram", NULL,
     "how many gradients had staleness 0, 1, 2, ..; the 64th element counts all larger ones",
     MADE(put_histogram), .type = "list", .to = "staleness.histogram"},
    {"staleness.max", "updates", NULL, AT(staleness.max), .join = JOIN_MOST_OF_WORKERS},
    {"staleness.mean", "updates", NULL, AT(staleness.mean), .to = "staleness.mean"},
    {"staleness.spread", NULL,
     "newest minus oldest version among the keys of the weights that one step computed on; all 0 on a "
     "server",
     OBJECT},
    {"staleness.spread.mean", "updates", NULL, AT(staleness.spread_mean), .to = "staleness.spread.mean"},
    {"staleness.spread.max", "updates", NULL, AT(staleness.spread_max), .join = JOIN_MOST_OF_WORKERS},
    {"staleness.spread.steps", NULL, NULL, AT(staleness.spreads)},
    {"clock", NULL,
     "when this rank trained: from the start of its first step to the end of its last one. On a "
     "server: from its first gradient to its last update; null: it received none",
     OBJECT},
    {"clock.boot_id", NULL, "identifier of the machine's boot: ranks with the same one share a clock",
     ALSO(machine.boot_id)},
    {"clock.begin_ns", "ns", "on the machine's monotonic clock", AT(span.begin_ns), .null_if_zero = true},
    {"clock.end_ns", "ns", NULL, AT(span.end_ns), .null_if_zero = true},
    {"clock.aside_seconds", "s",
     "in that time, seconds in which the run was held while another run had its turn (compare.py)",
     AT(span.not_training_s)},
    {"process", NULL, NULL, OBJECT},
    {"process.pid", NULL, "ranks that are threads share one", ALSO(machine.pid)},
    {"process.cpu_begin_ns", "ns", "CPU time of the process at `clock.begin_ns`", AT(span.cpu_begin_ns),
     .null_if_zero = true},
    {"process.cpu_end_ns", "ns", NULL, AT(span.cpu_end_ns), .null_if_zero = true},
    {"job_resident", NULL, "`totals.pss_bytes` in summary.json", OBJECT, IF(r.resident.processes),
     .when = "worker 0", WORKER_ONLY},
    {"job_resident.pss_bytes", "bytes", NULL, AT(resident.pss_bytes)},
    {"job_resident.processes", NULL,
     "processes that were counted. With fewer than the ranks have, the figure is not the job's",
     AT(resident.processes)},
    {"machine", NULL, "the machine of this rank", OBJECT},
    {"machine.host", NULL, NULL, ALSO(machine.host)},
    {"machine.processor", NULL, NULL, ALSO(machine.processor)},
    {"machine.cores", NULL, "processors that are online", ALSO(machine.cores)},
    {"machine.processors", NULL,
     "processors that its affinity mask and the quota of its control groups allow", ALSO(machine.processors)},
    {"machine.numa_nodes", NULL, NULL, ALSO(machine.numa_nodes), .null_if_zero = true},
    {"machine.numa_node", NULL,
     "the node that contains its whole affinity mask, counted from 1; null: the mask spans several nodes",
     ALSO(machine.numa_node), .null_if_zero = true},
    {"machine.memory_bytes", "bytes", NULL, ALSO(machine.memory_bytes), .null_if_zero = true},
    {"server_time", NULL,
     "time of a server's shard threads, summed, from the first gradient to the last answer. The parts "
     "add up to `total`",
     OBJECT, IF(r.server_time.threads), .in = IN_SERVER_TIME, SERVER_ONLY},
    {"server_time.threads", NULL, NULL, AT(server_time.threads)},
    {"server_time.receive", "s", "receives messages from the sockets", AT(server_time.receive),
     .compared_as = "receive", .title = "receive"},
    {"server_time.sum", "s", "adds gradients, rounds them, sums squares", AT(server_time.sum),
     .compared_as = "sum", .title = "sum"},
    {"server_time.hold", "s",
     "idle while it holds gradients of a step that waits for more of them or for the scheduler's "
     "decision",
     AT(server_time.hold), .compared_as = "hold", .title = "hold"},
    {"server_time.wait", "s", "idle and holds no gradients", AT(server_time.wait), .compared_as = "wait",
     .title = "wait"},
    {"server_time.update", "s", "runs the optimizer and stores the new weights", AT(server_time.update),
     .compared_as = "update", .title = "update"},
    {"server_time.reply", "s", "sends answers: acknowledgements, weights, sums", AT(server_time.reply),
     .compared_as = "reply", .title = "reply"},
    {"server_time.total", "s", NULL, AT(server_time.total)},
    {"scheduler", NULL,
     "the scheduler's cost since the start of the job; the scheduler has no report of its own", OBJECT,
     IF(r.scheduler.known), SERVER_ONLY},
    {"scheduler.cpu_seconds", "s",
     "CPU time of its process since the job's first start. If a launcher has started the job, that "
     "process is the launcher",
     AT(scheduler.cpu_s)},
    {"scheduler.rss_bytes", "bytes", "peak resident set of that process", AT(scheduler.rss_bytes)},
    {"scheduler.control_sent", "bytes", "in the whole run; the scheduler sends no payload",
     AT(scheduler.control_sent)},
    {"scheduler.control_received", "bytes", NULL, AT(scheduler.control_received)},
    {"run", NULL, "facts that only worker 0 has; summary.json has them at the top level", .type = "object",
     .when = "worker 0", WORKER_ONLY},
    {"device", NULL, "the rank's GPU", MADE(put_device), .type = "object", IF(r.on_gpu), .when = "GPU",
     .in = IN_MEMORY, WORKER_ONLY},
    {"device.*", NULL, "as in `devices[]` of summary.json, of this rank only",
     .type = "string, integer, list or null"},
    {"device.notes[]", NULL, NULL, .type = "string"},
};

#undef AT
struct figure_rows rank_figures(void) {
    return FIGURE_ROWS(of_ranks);
}

static struct rank_document document_of(const struct rank_report *r) {
    const struct wire_prediction *w = &r->wire;
    const struct offload_traffic *p = &w->offload;
    return (struct rank_document){.r = *r,
                                  .predicted_sent = rank_predicted_sent(r),
                                  .predicted_received = rank_predicted_received(r),
                                  .clock_error_s = (double)r->clock_error_ns * 1e-9,
                                  .predicted_bytes = mem_device_bytes(r->memory.predicted_bytes),
                                  .device_bytes = mem_device_bytes(r->peak_bytes),
                                  .pairs = w->local_sent_per_step || w->local_received_per_step,
                                  .offloads = p->down || p->up || p->read || p->written,
                                  .keeps = r->checkpoints.written + r->checkpoints.failed > 0};
}

void rank_figures_put(cJSON *o, const struct rank_report *r) {
    struct rank_document d = document_of(r);
    machine_facts_read(&d.machine);
    if (r->job) report_job_name(r->job, d.job);
    figures_put(o, rank_figures(), &d);
}

void rank_figures_put_predicted(cJSON *o, const struct rank_report *r) {
    const struct rank_document d = document_of(r);
    figures_put_predicted(o, rank_figures(), &d);
}

void rank_report_predict(struct rank_report *r, const struct config *c, const struct prediction *p) {
    r->memory = p->memory;
    r->wire = p->wire;
    r->transport_bound_bytes = c->row->allowance ? (size_t)c->row->allowance(c, r->role, p).held_bytes : 0;
}

struct topology_formula topology_formula_of(const struct config *c, const char *role, bool frozen) {
    struct topology_formula f = c->row->formula(c, role);
    size_t n = strlen(f.memory);
    size_t copies = !strcmp(role, "worker");
    bool shards = c->row->shards_frozen && c->row->shards_frozen(c, role, &copies);
    if (frozen && copies)
        snprintf(f.memory + n, sizeof f.memory - n, "%s%zuF%s", n ? "+" : "", copies * dtype_size(c->dtype),
                 !shards                   ? ""
                 : !strcmp(role, "worker") ? "/N"
                                           : "/S");
    return f;
}

void rank_figures_list(cJSON *doc, const struct config *c, const cJSON *report) {
    const struct topology_formula formula =
        topology_formula_of(c, json_text(report, "role", ""), json_number(doc, "frozen_params") > 0);
    const struct {
        const char *list, *formula;
        unsigned in;
    } lists[] = {{"memory", formula.memory, IN_MEMORY}, {"wire", formula.wire, IN_WIRE}};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        cJSON *list = cJSON_GetObjectItem(doc, lists[i].list), *element = cJSON_CreateObject();
        if (!list) list = cJSON_AddArrayToObject(doc, lists[i].list);
        figures_take(element, rank_figures(), lists[i].in, report);
        cJSON_AddStringToObject(element, "formula", lists[i].formula);
        cJSON_AddItemToArray(list, element);
    }
    const cJSON *time = json_item(report, "server_time");
    if (!time) return;
    cJSON *servers = cJSON_GetObjectItem(doc, "server_time"), *one = cJSON_Duplicate(time, 1);
    if (!servers) servers = cJSON_AddArrayToObject(doc, "server_time");
    json_put(one, "rank", json_number(report, "rank"));
    cJSON_AddItemToArray(servers, one);
}

// ---------------------------------------------------------------- facts of worker 0
static void put_hash(cJSON *o, const char *key, const void *from) {
    const struct run_facts *f = from;
    char hash[REPORT_JOB_MAX];
    json_put_text(o, key, f->has_hash ? report_job_name(f->weights_hash, hash) : NULL);
}
static void put_revision(cJSON *o, const char *key, const void *from) {
    (void)from;
    json_put_text(o, key, starring_revision);
}
static void put_built_for(cJSON *o, const char *key, const void *from) {
    (void)from;
    cJSON_AddStringToObject(o, key, cpu_kernel_vectors());
}

#define AT(m) FIGURE_AT(run_facts, m)
#define TOP   .in = IN_TOP

static const struct figure of_runs[] = {
    {"params", NULL, "P, the parameters that are trained, without padding", AT(params), .predicted = true,
     TOP},
    {"frozen_params", NULL, "F, those that LoRA freezes; 0: all are trained", AT(frozen_params),
     .predicted = true, TOP},
    {"cpu_kernel", NULL, "the kernel of matrix products; null: not computed on a CPU", OBJECT,
     .type = "object or null", FIGURE_IF(run_facts, cpu_kernel), TOP},
    {"cpu_kernel.name", NULL,
     "the kernel of worker 0's matrix products: `fma`, in bf16 also `avx512_bf16` or `amx` "
     "(`cpu.kernel`). Speeds depend on it and on `built_for`; bits do not",
     AT(cpu_kernel), .type = "string", .when = "CPU"},
    {"cpu_kernel.built_for", NULL, "the vector instructions that worker 0's program was built for",
     MADE(put_built_for), .type = "string", .when = "CPU"},
    {"head", NULL, "how the head splits the logits of a micro-batch into chunks", OBJECT, TOP},
    {"head.chunk_rows", NULL, "rows of a chunk of logits; the last one may have fewer", AT(head.rows)},
    {"head.chunks", NULL, "chunks of a micro-batch", AT(head.chunks)},
    {"head.apart", NULL,
     "the chunks' gradients are summed in a separate buffer first: in 16 bits, with several chunks "
     "and several micro-batches",
     AT(head.separate)},
    {"launch", NULL,
     "`threads`: the ranks are threads of one process; `processes`: they are processes that the "
     "program has started; else the launcher that has started them: `torchrun`, `Slurm's srun`, "
     "`mpirun`, `mpiexec` and others",
     AT(launch), .type = "string", TOP},
    {"medium", NULL,
     "how payloads move between ranks: `shm` (shared memory), `tcp`, `threads` (of one process), "
     "`nccl`, `mpi` (Open MPI chooses), `none` (one rank)",
     AT(medium), .type = "string", TOP},
    {"weights_hash", NULL,
     "xxh64 of the final weights in logical tensor order, without gaps and padding, in hexadecimal; "
     "null: the run was interrupted and did not keep its weights",
     MADE(put_hash), .type = "string or null", TOP},
    {"data", NULL, "description of the token stream", AT(data), .type = "string", TOP},
    {"wall_seconds", "s", "worker 0, from its start to its report", AT(wall_seconds), TOP},
    {"resumed_from", "steps",
     "steps before the checkpoint that the run resumed from. `time`, `wire`, `memory`, "
     "`updates_applied` and other measurements cover the later steps only; null: it did not resume",
     AT(resumed_from), .null_if_zero = true, TOP},
    {"tokens_per_sequence", "tokens",
     "mean length of the sequences whose gradients were applied, without padding: `seq_len`, or with "
     "`data.documents` whole the mean length of their documents",
     AT(tokens_per_sequence), .null_if_zero = true, TOP},
    {"padding", NULL,
     "share of padding in the tokens that were computed for these sequences (in `ps:async`: worker "
     "0's); 0 unless `data.documents` is whole",
     AT(padding), TOP},
    {"flops_per_token", "FLOP",
     "forward and backward, attention in full: " FLOPS_FULL
     ", T being the mean over the tokens of their sequence's",
     AT(flops.model.full), TOP},
    {"flops_per_token_causal", "FLOP", "with causal attention: " FLOPS_CAUSAL, AT(flops.model.causal), TOP},
    {"recomputed_flops_per_token", "FLOP",
     "products and attention that the backward pass computes again "
     "([ring.md](ring.md#recomputation)). Among all rates and MFUs only `hardware_flops_per_second` "
     "counts it",
     AT(flops.again.full), TOP},
    {"recomputed_flops_per_token_causal", "FLOP", "the same with causal attention", AT(flops.again.causal),
     TOP},
    {"interrupted", NULL, "some worker ended before its last step", AT(interrupted)},
    {"place", "steps", "in `ps:async`: completed global batches; else null", AT(place), .null_if_zero = true},
    {"revision", NULL,
     "git revision of the sources, with `-dirty` if files differed from it; null: not built in a git "
     "checkout",
     MADE(put_revision), .type = "string or null", TOP},
};

struct figure_rows run_figures(void) {
    return FIGURE_ROWS(of_runs);
}
#undef AT

// ---------------------------------------------------------------- the summary, of a struct config
#define CONFIG(m) FIGURE_AT(config, m)
#define DESCRIBED .kind = FIGURE_DESCRIBED
static void put_dtype(cJSON *o, const char *key, const void *from) {
    cJSON_AddStringToObject(o, key, dtype_name(((const struct config *)from)->dtype));
}
static void put_device_kind(cJSON *o, const char *key, const void *from) {
    cJSON_AddStringToObject(o, key, config_device(from)->name);
}
static void put_servers(cJSON *o, const char *key, const void *from) {
    json_put(o, key, config_ranks(from, "server"));
}
static void put_explained(cJSON *o, const char *key, const void *from) {
    const struct config *c = from;
    struct topology_texts w = {.loss_of = LOSS_OF_ALL, .waits_for_all = true};
    cJSON *words = cJSON_AddObjectToObject(o, key);
    c->row->explain(c, &w);
    json_put_text(words, "picture", w.picture);
    json_put_text(words, "how", w.how);
    json_put_text(words, "rule", w.rule);
    json_put_text(words, "differs", w.differs);
    json_put_text(words, "loss_of", w.loss_of);
    cJSON_AddBoolToObject(words, "waits_for_all", w.waits_for_all);
}
static void put_tokens_per_step(cJSON *o, const char *key, const void *from) {
    const struct config *c = from;
    json_put(o, key, (double)(c->train_batch * c->seq));
}
static bool is_stale(const void *from) { return ((const struct config *)from)->row->reports_staleness; }

static const struct figure of_summaries[] = {
    {"state", NULL,
     "`complete`; `interrupted`: ended by Ctrl-C or SIGTERM before its last step; `unkept`: all steps "
     "are done, but no checkpoint could be kept (exit status 1)",
     .type = "string"},
    {"topology", NULL, "as in `--topology`", CONFIG(topology), .type = "string", .predicted = true},
    {"explained", NULL, "the topology in words, for reports", MADE(put_explained), .type = "object"},
    {"explained.picture", NULL, "`star`, `ring`, `gossip`; null: it is one process",
     .type = "string or null"},
    {"explained.how", NULL, "who adds gradients, and who updates weights", .type = "string"},
    {"explained.rule", NULL, "when they do so, if the topology has several consistencies; else null",
     .type = "string or null"},
    {"explained.differs", NULL,
     "why losses and weights differ from those of `ps:sync` and `zero:*`; null: with the same "
     "configuration they are equal",
     .type = "string or null"},
    {"explained.loss_of", NULL,
     "the samples whose mean loss is in metrics.jsonl and in `loss`: `the global batch`, or fewer",
     .type = "string"},
    {"explained.waits_for_all", NULL, "whether each step needs every worker's gradient of the same step",
     .type = "boolean"},
    {"stage", NULL, "0 to 3", .type = "integer", .when = "`zero:*`"},
    {"consistency", NULL, "the topology's name after `ps:`, without the number", .type = "string",
     .when = "`ps:*`"},
    {"graph", NULL, "as `gossip.graph`", .type = "string", .when = "`gossip`"},
    {"local_steps", NULL,
     "local steps between two exchanges, as in `--local-steps`. `weights_hash` and evaluations are "
     "those of the anchor: the weights that all ranks share after an exchange",
     CONFIG(local_steps.steps), FIGURE_IF(config, local_steps.steps), .when = "`--local-steps`"},
    {"security", NULL, "`loopback`, `job` or `insecure`: who could join ([security.md](security.md))",
     .type = "string", .when = "`ps:*`"},
    {"workers", NULL, "ranks that compute", CONFIG(workers), .predicted = true},
    {"servers", NULL, "0 unless `ps:*`", .type = "integer", MADE(put_servers), .predicted = true},
    {"dtype", NULL, "`fp32`, `bf16` or `fp16`", .type = "string", MADE(put_dtype), .predicted = true},
    {"device", NULL, "`cpu`, `ref` or `cuda`", .type = "string", MADE(put_device_kind), .predicted = true},
    {"model", NULL, "as in `--model`", CONFIG(model), .type = "string", .predicted = true},
    {"seed", NULL, "of initial weights and batches", CONFIG(seed)},
    {"train_batch_size", "sequences", "of the global batch", CONFIG(train_batch)},
    {"micro_batch_size", "sequences", "of one worker's micro-batch", CONFIG(micro_batch), .predicted = true},
    {"gradient_accumulation_steps", NULL, "micro-batches per step and worker", CONFIG(accumulation)},
    {"seq_len", "tokens", "of a sequence", CONFIG(seq), .predicted = true},
    {"steps", NULL,
     "completed steps: the lines of metrics.jsonl, plus `resumed_from`. In `ps:async`: global batches "
     "of all workers",
     .type = "integer"},
    {"steps_planned", NULL, "as in `--steps`", CONFIG(steps)},
    {"skipped", NULL,
     "steps that updated nothing. In `ps:async`: batches of all workers, since `resumed_from`",
     .type = "integer"},
    {"trouble", NULL, "the slowness and faults that `--straggle`, `--delay` and `--fault` asked for",
     .type = "object", .when = "trouble"},
    {"loss", NULL, NULL, OBJECT},
    {"loss.first", "nats per token", "of the first step", .type = "number or null"},
    {"loss.last", "nats per token", "of the last step", .type = "number or null"},
    {"val_loss", "nats per token", "of the last snapshot that was evaluated; null: none",
     .type = "number or null"},
    {"target_loss", "nats per token", "as in config.json; null: none", CONFIG(target_loss),
     .null_if_zero = true},
    {"time_to_loss", NULL,
     "when `val_loss` first reached `target_loss`, interpolated linearly between the last snapshot "
     "above it and the next one; if the first snapshot of the run has reached it: that snapshot. "
     "`compare.py` computes \"seconds to\" a loss in the same way. null: it was never reached, or "
     "there is no target",
     .type = "object or null"},
    {"unigram_entropy", "nats per token", "see evals.jsonl", .type = "number or null"},
    {"lives", NULL, "starts and restarts of the run, counted from history.jsonl", .type = "object",
     .when = "`--restart`"},
    {"away", NULL,
     "which workers were absent in which steps, by history.jsonl, in the order in which they left; "
     "`workers` in metrics.jsonl counts the others. null: workers are missing from steps, but "
     "history.jsonl does not have them (a scheduler without `--out`)",
     .type = "list or null", .when = "`--elastic`"},
    {"checkpoints", NULL, NULL, OBJECT, FIGURE_IF(config, recovery.checkpoint_every),
     .when = "`checkpoint_every`"},
    {"checkpoints.bytes_per_second", "bytes/s", "`bytes` / `seconds_writing`", .type = "number or null"},
    {"checkpoints.step_slowed_seconds", NULL, "time that steps waited for checkpoints", OBJECT},
    {"checkpoints.step_slowed_seconds.mean", "s", "per checkpoint, of the rank that waited most",
     .type = "number or null"},
    {"tokens_per_step", "tokens",
     "of the global batch: `train_batch_size` x `seq_len`; with `data.documents` whole an upper limit",
     .type = "integer", MADE(put_tokens_per_step), .predicted = true},
    {"updates_applied", NULL,
     "updates of the whole job since `resumed_from`. In `ps:*`: updates that every key of every "
     "server has had; the mean of `pushes_per_update` pushes is one update",
     .type = "number or null"},
    {"samples_applied", "sequences",
     "samples of all workers whose gradients were applied; those of skipped steps are not",
     .type = "number or null"},
    {"tokens_applied", "tokens", "their tokens, without padding: `samples_applied` x `tokens_per_sequence`",
     .type = "number or null"},
    {"seconds", "s",
     "training time: from the start of the first worker's first step to the end of the last worker's "
     "last one, without the time in which the run was held (`clock.aside_seconds`). On several "
     "machines: the longest training time of a worker",
     .type = "number or null"},
    {"tokens_per_second", "tokens/s",
     "`tokens_applied` / `seconds`. In `ps:async` both without the tail: while all workers work",
     .type = "number or null"},
    {"flops_per_second", "FLOP/s", "`tokens_per_second` x `flops_per_token`", .type = "number or null"},
    {"flops_per_second_causal", "FLOP/s", "`tokens_per_second` x `flops_per_token_causal`",
     .type = "number or null"},
    {"hardware_flops_per_second", "FLOP/s",
     "`tokens_per_second` x (`flops_per_token` + `recomputed_flops_per_token`)", .type = "number or null"},
    {"hardware_flops_per_second_causal", "FLOP/s", "the same with causal attention",
     .type = "number or null"},
    {"datasheet_flops_per_second", "FLOP/s",
     "the vendors' dense 16-bit rates of all GPUs of the run; null: not in the table of datasheets",
     .type = "number or null"},
    {"mfu_datasheet", NULL, "`flops_per_second` / `datasheet_flops_per_second`", .type = "number or null"},
    {"mfu_datasheet_causal", NULL, "`flops_per_second_causal` / `datasheet_flops_per_second`",
     .type = "number or null"},
    {"step_seconds", NULL, NULL, OBJECT},
    {"step_seconds.median", "s",
     "nearest-rank percentiles over all steps; in a run of more than 262,144 steps over every second "
     "step, every fourth, and so on",
     .type = "number or null"},
    {"step_seconds.p5", "s", NULL, .type = "number or null"},
    {"step_seconds.p95", "s", NULL, .type = "number or null"},
    {"step_seconds.spread", NULL,
     "(p95 - p5) / median of the steps after the first; above 0.25 tables mark the run's times with "
     "~. null: fewer than 5 steps",
     .type = "number or null"},
    {"memory", NULL, "an element per rank", .type = "list", .predicted = true},
    {"memory[].formula", NULL, "the formula of `formula_bytes`: P parameters, N workers, S servers",
     .type = "string", .predicted = true},
    {"wire", NULL, "an element per rank", .type = "list", .predicted = true},
    {"wire[].formula", NULL, "the textbook's formula of the payload", .type = "string", .predicted = true},
    {"totals", NULL, "sums over all roles: workers, servers and the scheduler", OBJECT},
    {"totals.rss_bytes", "bytes",
     "sum of the processes' peak resident bytes. A process whose ranks are threads counts once. A "
     "page of shared memory counts in each process that has touched it",
     DESCRIBED},
    {"totals.pss_bytes", "bytes",
     "resident bytes of all processes of the job after the last step: the ranks, and the program that "
     "started them (with a star's scheduler), or mpirun. A page that several processes have touched "
     "is divided among them (the kernel's PSS), so that it counts once. compare.py shows this figure. "
     "null: the job was on several hosts, its roles were started one by one, or the kernel does not "
     "report PSS",
     .type = "number or null", .compared_as = "resident memory"},
    {"totals.cpu_seconds", "s", "CPU time of training; each process counts once", DESCRIBED,
     .compared_as = "CPU seconds of training"},
    {"busiest", NULL, "the largest figure of one rank (of one process: `rss_bytes`, `cpu_seconds`)", OBJECT},
    {"busiest.*", NULL, "as in `totals`", DESCRIBED},
    {"machine", NULL, "the machine of worker 0; null: it left no report", .type = "object or null"},
    {"placement", NULL,
     "`launch`, the number of machines, and the roles on each: `torchrun, on 2 machines: h1: "
     "scheduler, workers 0-1, server 0; h2: worker 2, server 1`. Absent if a star's roles were "
     "started one by one",
     .type = "string"},
    {"devices", NULL, "an element per GPU", .type = "list", .when = "GPU"},
    {"time", NULL,
     "seconds of all steps, mean over workers: forward + backward + optimizer + wait + comm_exposed + "
     "host + data = total ([measuring.md](measuring.md))",
     OBJECT},
    {"server_time", NULL,
     "an element per server: the time of its shard threads, summed, from the first gradient to the "
     "last answer. The parts add up to `total`",
     .type = "list", .when = "`ps:*`"},
    {"staleness", NULL,
     "a gradient's staleness: the updates between the weights that it was computed on and its own "
     "update. Over all workers and all updates, including those of `tail_batches`; gradients in "
     "`dropped_pushes` are not in it",
     OBJECT, .there = is_stale, .when = "`ps:*`"},
    {"staleness.spread", NULL,
     "newest minus oldest version among the keys of the weights that one step computed on", OBJECT},
    {"units", NULL, "meanings of the keys of this file", .type = "object"},
};
struct figure_rows summary_figures(void) {
    return FIGURE_ROWS(of_summaries);
}
