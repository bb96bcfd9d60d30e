// What `starring --version` says and files name as their origin.
#ifndef STARRING_SHARED_CORE_VERSION_H
#define STARRING_SHARED_CORE_VERSION_H

#define STARRING_VERSION "0.1"

#endif
