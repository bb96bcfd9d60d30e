// The version, as `starring --version` says it and files name it as their origin.
#ifndef STARRING_SHARED_CORE_VERSION_H
#define STARRING_SHARED_CORE_VERSION_H

#define STARRING_VERSION "0.1"

// The revision of the sources, set once by main; NULL: built outside of a git checkout, or not by main.
extern const char *starring_revision;

#endif
