// Ctrl-C and SIGTERM as a flag that loops look at.
//
// A star's launcher takes the signals and passes on one SIGTERM to whom it concerns. Its children are in the
// terminal's group, as is every process that `timeout` or a job scheduler ends: they obey their launcher
// alone, or a Ctrl-C would end servers under workers that still finish a step.
#ifndef STARRING_SHARED_LAUNCH_STOP_H
#define STARRING_SHARED_LAUNCH_STOP_H

#include <signal.h>
#include <stdbool.h>

// A signal that comes again so soon is the same one: `timeout` sends it to the command and to the command's group.
#define STOP_AGAIN_S 0.5

// Installs handlers for SIGINT and SIGTERM; the flag becomes the signal's number. A second signal of the
// same kind, STOP_AGAIN_S later, ends the process at once. May be called again. behind: as stop_answers.
const _Atomic int *stop_install(const char *behind);

// The first signal is answered at once, by one process of a job: "Ctrl-C: ending after this step; again ends now". behind: what
// ends first, "this step"; NULL: another process answers. For who takes signals himself; with stop_install, nothing to do.
void stop_answers(const char *behind);
void stop_answer(int number);  // async-signal-safe; does nothing when it is called again

// The launcher, before it starts children: they will know it.
void stop_supervise(void);
// A role: as stop_install where it was started by hand. The child of a launcher heeds its signals alone, and
// the launcher ends it itself when asked twice. orderly (a worker): it is one of those that the launcher asks
// first, so a SIGTERM of anybody is obeyed; two that come at once are one, and the launcher's may be the lost
// one.
const _Atomic int *stop_install_role(bool orderly);
// Whether a launcher watches over this process.
bool stop_supervised(void);

// A supervisor (supervise.h) before it starts mpirun: its ranks will know it, and where they print (descriptors that
// mpirun inherits). They heed its signals alone: a SIGTERM of mpirun's says that mpirun has lost a rank, or is to end
// itself, which a rank passes on (STOP_RANK_DIED); the supervisor knows more, and ends them all where it must.
void stop_supervise_ranks(int out, int err);
// What the ranks say to it by signals, whose values hold two numbers. Those of stop_ranks_lost: the lowest, and how many, with
// STOP_STUCK where they live; how
// many is 0 where that rank was sent a signal by neither mpirun nor the supervisor;
// all others: which rank, and the status that it ends with.
#define STOP_RANK_DIED   SIGUSR2   // without a value: mpirun has told this rank to end
#define STOP_RANK_ENTERS SIGRTMIN  // the lower number is taken first
#define STOP_RANK_MET    (SIGRTMIN + 1)
#define STOP_RANK_ENDED  (SIGRTMIN + 2)
#define STOP_RANK_SPOKE  (SIGRTMIN + 3)  // it has printed an error, its first
#define STOP_STUCK       (1 << 12)
int stop_value_rank(int value);
int stop_value_number(int value);
// A rank; nothing happens in another process. What it prints no longer goes through mpirun, with which it might be lost; and
// its supervisor learns that it has said why it fails, however it ends.
void stop_rank_streams(void);
void stop_rank_enters(void);       // MPI_Init, where it waits for all others
void stop_rank_met(void);          // all others, there
void stop_rank_ended(int status);  // has only to leave; a rank that is gone and has not said so was killed
bool stop_rank_is_watched(void);   // there is a supervisor
// mpirun holds this process fast, or would take its end for a failure: when it has ended it waits for the supervisor to kill
// it. Nothing happens where there is none.
void stop_rank_stays(void);
// A rank has given up others, which stand still, or, STOP_STUCK, live and do not come, as a value. lost (size): at least one of
// all ranks.
int stop_value_lost(const bool *lost, int size, int stuck);
// Tells the supervisor so, by this rank or in the name of one on another machine: it ends them all as if those had been killed,
// and says which it was, also when they have been asked to end. Returns at once where there is no supervisor.
void stop_ranks_lost(int value);

// A run whose ranks are threads has given up one of them. Where a supervisor could start it again it says why and ends here;
// otherwise nothing happens.
void stop_run_lost(const char *why);
void stop_run_restarts(void);  // there is one
#define EXIT_RUN_LOST 3        // for the supervisor alone

// The exit status of what returned rc and looked at the flag (NULL: at none): 0, EXIT_RUN_FAILED, or, where a
// signal was in the way of the end, the shell's 128 + its number.
int stop_status(int rc, const _Atomic int *stop);

#endif
