// The names below RUN/checkpoints. Of shared/state alone: checkpoint.h is for everybody else.
#ifndef STARRING_SHARED_STATE_CHECKPOINT_LIST_H
#define STARRING_SHARED_STATE_CHECKPOINT_LIST_H

#include <stdbool.h>
#include <stdint.h>

// malloc'd paths.
char *checkpoints_dir(const char *run_dir);
char *checkpoint_final(const char *run_dir, int64_t step);  // RUN/checkpoints/step-N

struct checkpoint_place {
    int64_t step;
    bool old;  // it is step-N.old, and there is no step-N
};
struct checkpoint_list {
    struct checkpoint_place *at;  // the newest first
    int count;
};
// The complete ones below `dir` (checkpoints_dir's); free(list.at).
struct checkpoint_list checkpoint_list(const char *dir);
char *checkpoint_place_path(const char *dir, const struct checkpoint_place *p);  // malloc'd

// The step that the name of a checkpoint's directory says; -1: it bears a name of its own.
int64_t checkpoint_named(const char *path);

// Takes the name away first: whoever dies meanwhile leaves a .gone directory. Whatever lies at path; nothing: 0.
int checkpoint_remove(const char *dir, const char *path, int64_t step, char **error);

// What this life has left of earlier steps: a participant that was still at it when the checkpoint was given up.
void checkpoint_sweep_given_up(const char *dir, uint64_t life, int64_t step);

#endif
