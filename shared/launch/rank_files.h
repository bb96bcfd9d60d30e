// The files of a rank that does not see rank 0's directory DIR, which others have started (joined.h): it writes into a folder of its
// own, and at its end rank 0 takes what is small: reports, spans, records.
//
// Files that stand still are waited for, in words, as long as the rank that waits for them is alive.
//
// Threads   The main thread.   Errors    -1 after logging, and everybody's waits end (rendezvous_abort).
#ifndef STARRING_SHARED_LAUNCH_RANK_FILES_H
#define STARRING_SHARED_LAUNCH_RANK_FILES_H

#include "shared/launch/run.h"

// All ranks, when what they have started has ended; status: with what. Behind it rank 0's DIR has what run_end merges.
void rank_files_end(struct run *r, int status);
// What a rank puts at the meeting under the name, however long it takes while it is alive; what: what is waited for, "end". NULL: it
// has gone, or the job has ended.
void *rank_await(const struct run *r, int rank, const char *what, size_t *bytes, const char *name);

#endif
