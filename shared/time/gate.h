// The gate: lets runs on one machine alternate. A comparison starts them all, and lets one continue for a slice of
// steps while the others wait between two steps (experiments/comparison/turns.py). Positions are counted in samples of
// the job.
//
//     limit          0 ------------- 512 ---------------------------- 1024
//     a rank         | waits         | steps up to sample 512 | waits  | steps ..
//     the others     .. steps        | wait                            ..
//
// The gate     is a file that the comparison creates and names in STARRING_GATE; every process of the job maps it.
//              A rank begins a step if the step's first sample is below `limit`; otherwise it waits until the
//              comparison raises the limit.
// Samples      Synchronous ranks compute the same samples in a step, so all of them stop at the same step. Ranks that share
//              a budget of batches take different batches: together they compute exactly `limit` samples, most of them on
//              the fast ranks.
// The end      After the last step there is one more gate, GATE_END: evaluation and the writing of files wait there, too.
// Time         Time at the gate counts in no step, and peers do not treat it as silence: the threads that exchange messages
//              with peers continue. While all ranks wait, the comparison sets `since`; code that waits for all of them
//              can subtract this time (gate_held_ns).
// Errors       If the file is missing, too short or not a gate, gate_join returns -1 after logging its name.
#ifndef STARRING_SHARED_TIME_GATE_H
#define STARRING_SHARED_TIME_GATE_H

#include <stdbool.h>
#include <stdint.h>

#define GATE_VARIABLE "STARRING_GATE"

// The file's fields. The comparison writes the head, except unit, total, ranks, pace and taken. Each rank writes
// its own record.
#define GATE_MAGIC "STARGATE"
struct gate_head {
    char magic[8];
    int64_t records;        // number of records, which follow
    _Atomic int64_t limit;  // INT64_MAX: no rank waits any more
    // Counts the changes that the comparison makes; ranks sleep on it (futex).
    _Atomic uint32_t changes, spare;
    _Atomic int64_t held;   // ns in which all ranks waited, without the current wait (`since`)
    _Atomic int64_t since;  // CLOCK_MONOTONIC ns since when all ranks wait; 0: not all wait
    int64_t holder;         // pid of the comparison
    _Atomic int64_t unit;   // samples; each limit is a multiple of it
    _Atomic int64_t total;  // samples of the run
    _Atomic int64_t ranks;
    _Atomic int64_t pace;   // enum gate_pace
    _Atomic int64_t taken;  // records taken so far: more than ranks if a rank was restarted
    int64_t reserved[4];
};
struct gate_record {
    _Atomic int64_t waits;         // 1 + the limit at which this rank waits; 0: it does not wait
    _Atomic int64_t done, tokens;  // samples of its completed steps, and tokens that counted
    _Atomic int64_t passed_ns;     // when it last passed the gate
    // The end of its first step after passed_ns, and `tokens` at that time.
    _Atomic int64_t first_ns, first_tokens;
    _Atomic int64_t last_ns;  // the end of its last step
    _Atomic int64_t steps;    // completed steps
    int64_t reserved[8];
};

// ---------------------------------------------------------------- a rank
// Which ranks decide when a step ends. OWN: each rank has steps of its own. SLOWEST: a step ends when all ranks have
// computed it. FASTEST: a step ends when enough ranks have computed it; it does not wait for stragglers.
enum gate_pace { GATE_PACE_OWN, GATE_PACE_SLOWEST, GATE_PACE_FASTEST };
struct gate_facts {
    int rank, ranks;
    int64_t own, unit, total;  // samples: of this rank's batch; unit and total as in the head
    enum gate_pace pace;
    const _Atomic int *stop;  // non-zero: the run was asked to stop, so it waits at no gate; or NULL
};
struct gate_rank {
    struct gate_record *record;  // NULL: no gate
    struct gate_facts facts;
    bool passed;  // it has passed the gate, and has not yet ended a step since then
};
// Takes a record for the rank in the file that STARRING_GATE names. Returns 0 (also without a gate), or -1 after logging.
int gate_join(struct gate_rank *g, const struct gate_facts *facts);
static inline bool gate_is_open(const struct gate_rank *g, int64_t sample);
// Waits until the limit is above sample. Blocks. This rank must have no work in flight. Returns 0, or -1 after
// logging if the comparison has ended.
int gate_wait(struct gate_rank *g, int64_t sample);
// Records that a step has ended at ended_ns. tokens: this rank's tokens of the step that count.
void gate_step(struct gate_rank *g, int64_t tokens, int64_t ended_ns);
#define GATE_END (INT64_MAX - 1)  // the gate after the last step, as a sample for gate_wait

// ---------------------------------------------------------------- other code in a process of the job
int64_t gate_held_ns(void);  // nanoseconds so far in which all ranks waited; 0 without a gate
void gate_sleep(void);       // if all ranks wait: sleeps until one continues, at most 0.2 s

// ---------------------------------------------------------------- inline
int64_t gate_limit(void);
static inline bool gate_is_open(const struct gate_rank *g, int64_t sample) {
    return !g->record || sample < gate_limit();
}

#endif
