// Figures for people.
#ifndef STARRING_SHARED_CORE_FORMAT_H
#define STARRING_SHARED_CORE_FORMAT_H

#include <stdint.h>

// "512 B", "48.9 MiB", "29.2 GiB": MiB wherever it can be, three digits. Returns text.
const char *format_bytes(char text[24], double bytes);
// "1,234,567". Returns text.
const char *format_count(char text[32], int64_t n);

#endif
