// Where a run goes on from (config.recovery): which checkpoint, whether it is of the same run, what becomes of --out.
//
//     --resume        --out             what happens
//     latest          DIR               goes on from DIR's newest checkpoint, in DIR; begins where there is none
//     DIR, or a       the same DIR      goes on from it, in DIR; what came after that step goes
//       checkpoint    another, or none  goes on from it; the new directory begins with the next step
//     with --resume-weights-only        a new run that begins with these weights
#ifndef STARRING_SHARED_TRAIN_RESUME_H
#define STARRING_SHARED_TRAIN_RESUME_H

#include "shared/state/checkpoint_read.h"
#include "shared/state/identity.h"

// The checkpoint that the configuration asks for, as an absolute path (malloc'd) into *path; NULL: from the beginning. says: it
// tells people where "latest" finds none. 0, or -1 after logging.
int resume_find(const struct config *c, bool says, char **path);
// Whether the checkpoint is one of the run directory's own.
bool resume_is_own(const char *path, const char *dir);
// Opens it, and refuses what is of another run: -> NULL after naming the key and both values. says: this process is the one
// that tells what else is new. The identity's source is complete (layout, spec, data).
struct checkpoint *resume_open(const char *path, const struct identity_source *s, bool says);
// Takes the run directory for a run that begins with the checkpoint (NULL: none). 0, or -1 after logging.
int resume_take_dir(const struct config *c, const char *path, const char *dir, bool force);

#endif
