// The demo's text: Debian's jargon-text (the Jargon File, public domain), or, where the package or its
// documentation is not installed, an English-like text from a small grammar.
#ifndef STARRING_SHARED_DATA_DATA_DEMO_H
#define STARRING_SHARED_DATA_DATA_DEMO_H

#include <stddef.h>

#define DEMO_TEXT_PATH "/usr/share/doc/jargon-text/jargon.txt.gz"
// The text at path (gzip), or a generated one if there is no such file; malloc'd, the caller frees text
// and *name. NULL after naming what is damaged.
char *demo_text(const char *path, size_t *bytes, char **name);
// English-like text of exactly `bytes` bytes, the same on every machine (malloc'd).
char *generated_text(size_t bytes);

#endif
