// `starring keygen DIR`: a key for each role of a star, and the list of the public ones (key_files.h).
#ifndef STARRING_PS_TRUST_KEYGEN_H
#define STARRING_PS_TRUST_KEYGEN_H

struct topology_table;

// argv: what follows the command's name. The exit status: 0, 1 a file could not be written, 2 wrong options.
int keygen_command(const struct topology_table *t, int argc, char **argv);

#endif
