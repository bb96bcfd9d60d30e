// What a run needs on hosts that have nothing of it: the program with its plugins, model, data and configuration, as they are
// here, in one folder of each host that goes again (--stage). Libraries of the system are not among it.
//
//     FOLDER/bin      starring, libstarring_*.so
//     FOLDER/0, ..    a file or directory that the configuration names
//     FOLDER/config.json
//
// Here the folder holds links; tar follows them.
#ifndef STARRING_SHARED_LAUNCH_STAGE_H
#define STARRING_SHARED_LAUNCH_STAGE_H

#include "shared/config/config.h"

struct stage {
    char *links;    // here, until stage_end
    char *folder;   // there; the same on all hosts
    char *program;  // of these
    char *config;
};

// The configuration as it was read, without what "auto" is on this machine; its paths become those of the folder. 0, or -1
// after logging; stage_end either way.
int stage_begin(struct stage *s, struct config *c, const char *program);
// A shell's words that put the folder through a pipe; those of the host that take it, and that remove it (malloc'd).
char *stage_send(const struct stage *s);
char *stage_take(const struct stage *s, int host);
char *stage_remove(const struct stage *s);
void stage_end(struct stage *s);

#endif
