// An engine's own library: what is linked with a library that the program itself does without (Open MPI), and opened where
// the engine is wanted. It takes of the program what it needs of it: errors, streams, what a collective means.
//
// Where    The variable's file when it is set and not empty; else beside the program, in its lib folder, and in the lib folder
//          next to its own (bin/starring, lib/... and lib/starring/...).
// Threads  Any.
#ifndef STARRING_DECENTRAL_COLLECTIVE_PLUGIN_H
#define STARRING_DECENTRAL_COLLECTIVE_PLUGIN_H

#include <limits.h>

struct plugin {
    const char *file, *symbol, *variable;
    // For people: what it is linked with, Debian's packages to run and to build it, and what to use without it.
    const char *library, *runs, *builds, *instead;
    // plugin_open's own, once it has been called:
    const void *engine;
    char why_not[PATH_MAX + 256];
};

// The object that the symbol names, loaded once and never closed; NULL: *why is a sentence.
const void *plugin_open(struct plugin *p, const char **why);

#endif
