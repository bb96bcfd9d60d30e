// What a path is that was given as a model, before anything of it is read.
#ifndef STARRING_SHARED_HF_HF_LOOK_H
#define STARRING_SHARED_HF_HF_LOOK_H

// 0 where it may be a model: a config.json, or a directory with one, whose weights, where it has some, are safetensors. -1 after
// saying what it is and what to do: a file of weights alone, weights in a form that is not read, an adapter, a checkpoint of
// another program, a run's directory.
int hf_look(const char *path);

#endif
