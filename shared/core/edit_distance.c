#include "shared/core/edit_distance.h"

#include <string.h>

#define NAME_MAX_LENGTH 64

size_t edit_distance(const char *word, const char *name) {
    size_t
        row[NAME_MAX_LENGTH + 1];  // row[j]: from the part of word so far to the first j characters of name
    size_t n = strnlen(name, NAME_MAX_LENGTH);
    for (size_t j = 0; j <= n; j++) row[j] = j;
    for (size_t i = 0; word[i]; i++) {
        size_t diagonal = row[0];
        row[0] = i + 1;
        for (size_t j = 0; j < n; j++) {
            size_t best = diagonal + (word[i] != name[j]);
            if (row[j] + 1 < best) best = row[j] + 1;
            if (row[j + 1] + 1 < best) best = row[j + 1] + 1;
            diagonal = row[j + 1];
            row[j + 1] = best;
        }
    }
    return row[n];
}
