// The demo's text: Debian's jargon-text (the Jargon File, public domain). Without the package or its documentation
// it is an English-like text from a small grammar.
#ifndef STARRING_SHARED_DATA_DATA_DEMO_H
#define STARRING_SHARED_DATA_DATA_DEMO_H

#include <stddef.h>

#define DEMO_TEXT_PATH "/usr/share/doc/jargon-text/jargon.txt.gz"
// Returns the text at path (gzip), or a generated one if there is no such file. The caller frees the text and
// *name. Returns NULL after logging what is damaged.
char *demo_text(const char *path, size_t *bytes, char **name);
// Returns English-like text of exactly `bytes` bytes, the same on every machine (malloc'd).
char *generated_text(size_t bytes);

#endif
