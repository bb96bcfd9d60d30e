// DIR/state.json: whether a run is running, and how it ended.
//
//   {"state":"running","pid":123,"host":"h","boot_id":"..","start_ticks":456,"started":"2024-01-31T23:59:59Z",
//    "ended":null,"why":null}
//
// Written by the one process that represents the run (train, or rank 0 under mpirun), when it takes the directory and
// when it leaves it. A killed process leaves "running" in the file. So a reader checks whether that process exists: by
// its pid, the machine's boot and its start time in ticks. A later process with the same pid is thus not mistaken for
// it.
#ifndef STARRING_SHARED_REPORT_RUN_STATE_H
#define STARRING_SHARED_REPORT_RUN_STATE_H

#include <stdbool.h>
#include <stdint.h>

enum run_phase {
    RUN_UNKNOWN,      // no readable state.json
    RUN_RUNNING,      // its process is running, or on another machine: elsewhere
    RUN_DEAD,         // its process has ended without recording how
    RUN_COMPLETE,     // all steps are done
    RUN_INTERRUPTED,  // Ctrl-C or SIGTERM
    RUN_FAILED,
};

struct run_state {
    enum run_phase phase;
    bool elsewhere;  // RUN_RUNNING: its process is on another machine and cannot be checked from here
    bool own;        // RUN_RUNNING: it is this process
    int64_t pid;
    char host[256];
    char started[32], ended[32];  // UTC, ISO 8601; "" if unknown
    char why[512];                // reason of a failure or an interruption; "": none
};

// "running", "dead", "complete", "interrupted", "failed", "unknown".
const char *run_phase_word(enum run_phase p);

// A missing or invalid file is RUN_UNKNOWN. Never logs.
void run_state_read(const char *dir, struct run_state *out);
// This process takes the directory. Returns 0, or -1 after logging.
int run_state_begin(const char *dir);
// As run_state_begin, for a later start of a job that already owns the directory: if the disk fails, it only warns.
void run_state_adopt(const char *dir);
// This process leaves the directory. why: NULL or a sentence. Does nothing if another process has taken it meanwhile.
int run_state_end(const char *dir, enum run_phase phase, const char *why);
// As run_state_end, for a process of this machine that died while it owned the directory.
int run_state_end_for(const char *dir, int64_t pid, enum run_phase phase, const char *why);

#endif
