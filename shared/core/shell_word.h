// Paths in commands that a message tells people to type.
#ifndef STARRING_SHARED_CORE_SHELL_WORD_H
#define STARRING_SHARED_CORE_SHELL_WORD_H

// The text as one word of a shell command: in single quotes where it needs them (malloc'd).
char *shell_word(const char *text);

#endif
