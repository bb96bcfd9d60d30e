// The files of a rank that does not see rank 0's directory DIR and was started by another program (joined.h). The rank
// writes into a folder of its own, and at its end rank 0 receives the small files: reports, spans, records.
//
// Slow files are waited for, with a log line now and then, as long as the rank that reads or writes them is alive.
//
// Threads     The main thread.
// Errors      -1 after logging; the waits of all ranks end (rendezvous_abort).
#ifndef STARRING_SHARED_LAUNCH_RANK_FILES_H
#define STARRING_SHARED_LAUNCH_RANK_FILES_H

#include "shared/launch/run.h"

// Called by all ranks when their training has ended; status: its result. After that, rank 0's DIR has what run_end
// merges.
void rank_files_end(struct run *r, int status);
// Waits for the value that a rank puts at the rendezvous under the name, as long as the rank is alive. what: what is
// waited for, "end". Returns NULL if the rank has gone, or the job has ended.
void *rank_await(const struct run *r, int rank, const char *what, size_t *bytes, const char *name);

#endif
