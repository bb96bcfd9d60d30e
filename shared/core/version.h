// The version that `starring --version` prints and that files name as their origin.
#ifndef STARRING_SHARED_CORE_VERSION_H
#define STARRING_SHARED_CORE_VERSION_H

#define STARRING_VERSION "0.1"

// The revision of the sources, set once by main; NULL: built outside a git checkout, or not set.
extern const char *starring_revision;

#endif
