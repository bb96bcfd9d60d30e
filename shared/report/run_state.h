// DIR/state.json: whether a run is going on, and how it ended.
//
//   {"state":"running","pid":123,"host":"h","boot_id":"..","start_ticks":456,"started":"2024-01-31T23:59:59Z",
//    "ended":null,"why":null}
//
// Written by the one process that stands for the run (train, rank 0 under mpirun) when it takes the directory
// and when it leaves it. A process that was killed leaves "running" behind: a reader looks for the process,
// and knows it by its number, the boot of the machine and the tick it started at, so that another process
// which got the same number later is not taken for it.
#ifndef STARRING_SHARED_REPORT_RUN_STATE_H
#define STARRING_SHARED_REPORT_RUN_STATE_H

#include <stdbool.h>
#include <stdint.h>

enum run_phase {
    RUN_UNKNOWN,      // no state.json that can be read
    RUN_RUNNING,      // its process is alive, or on another machine: elsewhere
    RUN_DEAD,         // its process is gone and has not said how it ended
    RUN_COMPLETE,     // all steps done
    RUN_INTERRUPTED,  // Ctrl-C or SIGTERM
    RUN_FAILED,
};

struct run_state {
    enum run_phase phase;
    bool elsewhere;  // RUN_RUNNING: says so on another machine, which cannot be asked from here
    bool own;        // RUN_RUNNING: this process
    int64_t pid;
    char host[256];
    char started[32], ended[32];  // UTC, ISO 8601; "" where not known
    char why[512];                // of a failure or an interruption, ""
};

// "running", "dead", "complete", "interrupted", "failed", "unknown".
const char *run_phase_word(enum run_phase p);

// A file that is not there or makes no sense is RUN_UNKNOWN. Never logs.
void run_state_read(const char *dir, struct run_state *out);
// This process takes the directory. 0, or -1 after logging.
int run_state_begin(const char *dir);
// The same of a later life of a job, whose own it is: a disk that does not take it costs a warning.
void run_state_go_on(const char *dir);
// It leaves it. why: NULL or a sentence. Nothing happens where another process has taken it meanwhile.
int run_state_end(const char *dir, enum run_phase phase, const char *why);
// The same for a process of this machine that has died with the directory as its own.
int run_state_end_for(const char *dir, int64_t pid, enum run_phase phase, const char *why);

#endif
