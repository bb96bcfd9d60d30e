// The gate: runs of one machine take turns. A comparison starts them all, and lets one go on for a slice of steps while the
// others stand, each between two of its steps (experiments/comparison/turns.py). Names of places below are samples of the job.
//
//     limit          0 ------------- 512 ---------------------------- 1024
//     a rank         | stands        | steps up to sample 512 | stands | steps ..
//     the others     .. steps        | stand                           ..
//
// The gate     is a file that the comparison has made and named in STARRING_GATE, mapped by every process of the job. A rank
//              begins a step if the step's place lies before `limit`; else it stands until the comparison moves it.
// A place      is the same for all ranks that go together, so all stop at the same step. Where ranks share a budget of batches
//              each batch has its own: exactly `limit` samples are done, the most of them by the ranks that are fast.
// The end      is one gate more, behind the last step: what comes there (evaluation, files) waits as well.
// Time         at the gate counts in no step, and no peer takes it for silence: threads that talk to peers go on. While all ranks stand, the
//              comparison says so (`since`); what waits for them all that time can subtract it (gate_stood_ns).
// Errors       A file that is missing, too short or none: -1 after naming it.
#ifndef STARRING_SHARED_TIME_GATE_H
#define STARRING_SHARED_TIME_GATE_H

#include <stdbool.h>
#include <stdint.h>

#define GATE_VARIABLE "STARRING_GATE"

// The words of the file. The comparison writes the head but for unit, total, ranks, pace and taken; each rank its own seat.
#define GATE_MAGIC "STARGATE"
struct gate_head {
    char magic[8];
    int64_t seats;                 // that follow
    _Atomic int64_t limit;         // INT64_MAX: nobody stands any more
    _Atomic uint32_t bell, spare;  // moves with each word of the comparison; ranks sleep on it
    _Atomic int64_t stood;         // ns in which all ranks stood, up to `since`
    _Atomic int64_t since;         // CLOCK_MONOTONIC ns: all stand since then; 0: they do not
    int64_t holder;                // the comparison's process
    _Atomic int64_t unit;          // a limit is a multiple of so many samples
    _Atomic int64_t total;         // samples of the run
    _Atomic int64_t ranks;
    _Atomic int64_t pace;   // enum gate_pace
    _Atomic int64_t taken;  // seats so far: more than ranks where a rank was started anew
    int64_t reserved[4];
};
struct gate_seat {
    _Atomic int64_t stands;        // 1 + the limit at which this rank stands; 0: it does not
    _Atomic int64_t done, tokens;  // samples of the steps that it has gone through, and tokens that counted
    _Atomic int64_t passed_ns;     // when it was let go
    _Atomic int64_t first_ns,
        first_tokens;         // the end of its first step since then, and the tokens by that moment
    _Atomic int64_t last_ns;  // the end of its last step
    _Atomic int64_t steps;    // that it has gone through
    int64_t reserved[8];
};

// ---------------------------------------------------------------- a rank
// The ranks that set the pace. OWN: each rank has steps of its own. SLOWEST: a step is over when all ranks have ended it.
// FASTEST: a step is over when the ranks that are in time have ended it.
enum gate_pace { GATE_PACE_OWN, GATE_PACE_SLOWEST, GATE_PACE_FASTEST };
struct gate_facts {
    int rank, ranks;
    int64_t own, unit, total;  // samples of its batch; see above
    enum gate_pace pace;
    const _Atomic int *stop;  // non-zero: the run was asked to leave, and stands at no gate; or NULL
};
struct gate_rank {
    struct gate_seat *seat;  // NULL: there is no gate
    struct gate_facts facts;
    bool passed;  // no step has ended since
};
// Takes the rank's seat in the file that STARRING_GATE names. 0 (also without one), or -1 after logging.
int gate_take_seat(struct gate_rank *g, const struct gate_facts *facts);
static inline bool gate_is_open(const struct gate_rank *g, int64_t place);
// Stands until the limit lies behind place. Blocks. Nothing of this rank's may be under way. 0, or -1 after logging where the
// comparison has ended.
int gate_stand(struct gate_rank *g, int64_t place);
// A step has ended, with so many tokens that counted as this rank's.
void gate_step(struct gate_rank *g, int64_t tokens, int64_t ended_ns);
#define GATE_END (INT64_MAX - 1)  // the place behind the last step

// ---------------------------------------------------------------- what else runs in a process of the job
int64_t gate_stood_ns(void);  // nanoseconds so far in which all ranks stood; 0 without a gate
void gate_rest(void);         // while all stand: blocks until they need not, a fifth of a second at most

// ---------------------------------------------------------------- inline
int64_t gate_limit(void);
static inline bool gate_is_open(const struct gate_rank *g, int64_t place) {
    return !g->seat || place < gate_limit();
}

#endif
