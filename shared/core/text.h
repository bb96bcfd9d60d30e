// Words and figures in messages and files.
#ifndef STARRING_SHARED_CORE_TEXT_H
#define STARRING_SHARED_CORE_TEXT_H

#include <stddef.h>
#include <stdint.h>
#include <time.h>

// How far apart two words are: insertions, deletions and changes of a character, and swaps of two neighbours, that turn word
// into name, no part of it twice (optimal string alignment; Wagner & Fischer 1974, Damerau 1964). Only the first 64 characters of name count.
size_t edit_distance(const char *word, const char *name);

// "512 B", "48.9 MiB", "29.2 GiB": MiB wherever it can be, three digits. Returns text.
const char *format_bytes(char text[24], double bytes);
// Bytes as people write them, in any case, a blank before the unit or not: "4096", "64K", "16Mi", "1.5GiB" are powers of 1024,
// "6GB" powers of 1000. 0, or -1: the text says something else, less than 1, or more than 1024T.
int text_bytes(const char *text, int64_t *out);
// "1,234,567". Returns text.
const char *format_count(char text[32], int64_t n);
// "3:20 left", "2 h 05 min left". Returns text.
const char *format_left(char text[32], double seconds);
// "2024-01-31T23:59:59Z". Returns text.
const char *format_utc(char text[32], time_t t);

// The digits that the text begins with, without sign or blank, at most nine of them: nothing wraps. The text behind
// them; NULL: there are none, or more.
const char *text_count(const char *text, int *out);

// The text where it fits; else as many whole words of its beginning and of its end, where a reason stands, ".." between them.
// Returns out.
const char *text_words(char *out, size_t size, const char *text);
#define TEXT_WORDS(size, text) text_words((char[size]){""}, size, text)

// Length of the UTF-8 sequence that begins at s, of n bytes (RFC 3629, section 4: no surrogates, nothing
// overlong, at most U+10FFFF); 0: none does.
int text_utf8_length(const unsigned char *s, int64_t n);

// The shortest decimal text that reads back as exactly the same number.
void shortest_f32(char text[32], float x);
void shortest_f64(char text[32], double x);

// The text as one word of a shell command that people are told to type: in single quotes where it needs them
// (malloc'd).
char *shell_word(const char *text);

// This program as it was called, as the word that such a command begins with. Returns text.
#define PROGRAM_WORD 4096
const char *program_word(char text[PROGRAM_WORD]);

#endif
