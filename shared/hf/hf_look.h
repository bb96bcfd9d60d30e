// Checks a path that is given as a model, before anything in it is read.
#ifndef STARRING_SHARED_HF_HF_LOOK_H
#define STARRING_SHARED_HF_HF_LOOK_H

// Returns 0 if the path may be a model: a config.json, or a directory with one and with weights in safetensors, or an
// adapter's directory.
// Returns -1 after logging what the path is and what to do: a file of weights only, a directory whose weights did
// not arrive, are elsewhere or are in an unsupported form, an adapter, a checkpoint of another program, a run's
// directory. Only the path of a config.json gives random weights.
int hf_look(const char *path);

#endif
