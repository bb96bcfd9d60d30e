// Looks at a path that is given as a model, before anything in it is read.
#ifndef STARRING_SHARED_HF_HF_LOOK_H
#define STARRING_SHARED_HF_HF_LOOK_H

// 0 where it may be a model: a config.json, or a directory with one and with weights in safetensors. -1 after saying what it is
// and what to do: a file of weights alone, a directory whose weights did not arrive, lie elsewhere or are in a form that is not
// read, an adapter, a checkpoint of another program, a run's directory. Random weights are those of a config.json alone.
int hf_look(const char *path);

#endif
