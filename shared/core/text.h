// Words and numbers in messages and files.
#ifndef STARRING_SHARED_CORE_TEXT_H
#define STARRING_SHARED_CORE_TEXT_H

#include <stddef.h>
#include <stdint.h>
#include <time.h>

// Returns the number of insertions, deletions and changes of a character, and swaps of two neighbours, that turn
// word into name. No substring is edited twice (optimal string alignment; Wagner & Fischer 1974, Damerau 1964).
// Only the first 64 characters of name count.
size_t edit_distance(const char *word, const char *name);

// Returns the nearest of count names by edit distance, or NULL if none is similar.
const char *text_nearest(const char *word, const char *const *names, size_t count);

// Writes "512 B", "48.9 MiB", "29.2 GiB": bytes below 10000, else three digits of MiB or a larger unit. Returns text.
const char *format_bytes(char text[24], double bytes);
// Parses a size, in any case, with or without a blank before the unit: "4096", "64K", "16Mi", "1.5GiB" are powers
// of 1024, "6GB" powers of 1000. Returns 0, or -1 if the text has another form or is not between 1 byte and 1024T.
int text_bytes(const char *text, int64_t *out);
// Writes "1,234,567". Returns text.
const char *format_count(char text[32], int64_t n);
// Writes "124,439,808 parameters", or with LoRA "294,912 of 124,734,720 parameters trained".
const char *format_params(char text[96], int64_t trained, int64_t frozen);
// Writes "3:20 left" or "2 h 05 min left". Returns text.
const char *format_left(char text[32], double seconds);
// Writes "2024-01-31T23:59:59Z". Returns text.
const char *format_utc(char text[32], time_t t);

// Parses the digits at the start of text, without sign or blank. Returns the text after them, or NULL if there are no
// digits, or more than nine: so no overflow is possible.
const char *text_count(const char *text, int *out);

// Appends to a malloc'd text. *text NULL: begins one. The arguments may quote the text itself.
void text_add(char **text, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

// Copies the text to out if it fits. Otherwise out receives as many whole words as fit from the start and from the
// end (where a reason is), with ".." between them. Returns out.
const char *text_shorten(char *out, size_t size, const char *text);
#define TEXT_SHORTEN(size, text) text_shorten((char[size]){""}, size, text)

// Returns the length of the UTF-8 sequence at the start of s, which has n bytes (RFC 3629, section 4: no
// surrogates, nothing overlong, at most U+10FFFF). Returns 0 if there is none.
int text_utf8_length(const unsigned char *s, int64_t n);
// Returns the first character of a text, and its bytes in *length; 0: the text is empty, or does not begin with valid UTF-8.
uint32_t text_utf8_code(const char *text, int *length);

// Writes the shortest decimal text that reads back as exactly the same number.
void shortest_f32(char text[32], float x);
void shortest_f64(char text[32], double x);

// Returns the text as one word of a shell command that a message prints, in single quotes where needed (malloc'd).
char *shell_word(const char *text);

// Writes the name that this program was called by, as the first word of such a command. Returns text.
#define PROGRAM_WORD 4096
const char *program_word(char text[PROGRAM_WORD]);

// ---------------------------------------------------------------- version of the program
// The version that `starring --version` prints and that files name as their origin.

#define STARRING_VERSION "0.1"

// The revision of the sources, set once by main; NULL: built outside a git checkout, or not set.
extern const char *starring_revision;

#endif
