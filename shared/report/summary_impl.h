// What the parts of the summary share.
#ifndef STARRING_SHARED_REPORT_SUMMARY_IMPL_H
#define STARRING_SHARED_REPORT_SUMMARY_IMPL_H

#include "shared/config/json.h"
#include "shared/report/summary.h"

// Adds "time" to a rank's report; "time" and "time_per_rank" to the summary.
void summary_put_rank_times(cJSON *rank, const struct rank_report *r);
void summary_put_times(cJSON *summary, const cJSON *ranks);
void summary_print_peers(FILE *f, const cJSON *summary);  // whom the workers waited for, and who stood still

// Adds "checkpoints" to a rank's report that wrote or tried to; what they cost the run to the summary.
void summary_put_rank_checkpoints(cJSON *rank, const struct checkpoint_report *r);
void summary_put_checkpoints(cJSON *summary, const char *dir, const cJSON *ranks);
void summary_put_state(cJSON *summary, const char *word);  // instead of the one that it has
void summary_print_checkpoints(FILE *f, const cJSON *summary);
// Adds "lives": how often the job has begun anew and what that cost, as DIR/lives.jsonl says. Nothing without --restart.
void summary_put_lives(cJSON *summary, const char *dir);
void summary_print_lives(FILE *f, const cJSON *summary);
struct metrics_totals;
// Adds "tokens_per_step", the rates in FLOP and "step_seconds". Sorts m's seconds.
void summary_put_speed(cJSON *summary, const struct config *c, const struct metrics_totals *m,
                       const struct run_flops *flops);
// Adds "away" (--elastic): which steps went without which workers, as DIR/away.jsonl says.
void summary_put_away(cJSON *summary, const char *dir, int64_t workers, const struct metrics_totals *m);
void summary_print_away(FILE *f, const cJSON *summary);
// Steps that the ranks' reports tell of: those before the checkpoint that they went on from are none of them.
double summary_own_steps(const cJSON *summary);

// Beside the matrix product that the hash belongs to.
void summary_print_hash(FILE *f, const cJSON *summary);

// Tokens per second of all steps but the first (which warms caches and libraries up); NAN: nothing to tell.
double summary_rate(const struct metrics_totals *m, double tokens_per_step);

// Adds "clock", "process", "machine", "updates" and, of a server, "scheduler" to a rank's report.
void summary_put_cost(struct cJSON *rank, const struct rank_report *r);
// Adds "totals", "busiest", what was applied in how many seconds, "machine" and "revision" to the summary.
void summary_put_totals(struct cJSON *summary, const struct config *c, const struct cJSON *ranks);
void summary_print_totals(FILE *f, const struct cJSON *summary);

// Adds what went over the wire per step, predicted beside measured, to a rank's report; of phases, "phases".
void summary_put_wire(struct cJSON *rank, const struct rank_report *r);
void summary_print_phases(FILE *f, const struct cJSON *wire);

// Adds "server_time" to a server's report, and those of all servers to the summary. Nothing of a ring.
void summary_put_server_time(struct cJSON *rank, const struct rank_report *r);
void summary_put_server_times(struct cJSON *summary, const struct cJSON *ranks);
void summary_print_server_times(FILE *f, const struct cJSON *summary);

// Adds "replica" to the report of a server that replicates: bytes of sums, predicted beside measured.
void summary_put_across(struct cJSON *rank, const struct rank_report *r);  // nothing without groups
void summary_put_replica(struct cJSON *rank, const struct rank_report *r);
void summary_print_across(FILE *f, const struct cJSON *summary);
void summary_print_replicas(FILE *f, const struct cJSON *summary);

// Adds "offload" to the report of a rank that keeps state on the host or on disk: bytes that it moves between device and
// host and between host and disk, predicted beside measured.
void summary_put_offload(struct cJSON *rank, const struct rank_report *r);
// Host memory beside the device's, pinned and offload, and the bytes that went between them.
void summary_print_beside(FILE *f, const struct cJSON *summary);
void summary_print_offload(FILE *f, const struct cJSON *summary);
// Of a rank's classes, what lies in the device's memory.
double summary_device_bytes(const struct cJSON *classes);

// Adds "device" to a rank's report: the facts of its GPU, the machine it is in, its memory. Nothing on a CPU.
void summary_put_device(struct cJSON *rank, const struct rank_report *r);
// Adds "devices" to the summary: each GPU once, with the ranks on it, their ledgers and workspaces added up,
// what is in use of it and what of that is neither. Nothing when no rank was on a GPU.
void summary_put_devices(struct cJSON *summary, const struct cJSON *ranks);
// Adds the sum of the GPUs' rates in datasheets and the share of it that the run reached, with both countings
// of attention; nulls where one is not in the table. After summary_put_devices and the rates.
void summary_put_flops(struct cJSON *summary, const struct run_flops *flops);  // of a token and of a second
void summary_put_mfu(struct cJSON *summary, enum dtype dt);
void summary_print_devices(FILE *f, const struct cJSON *summary);

#endif
