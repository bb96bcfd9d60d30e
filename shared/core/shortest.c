#include "shared/core/shortest.h"

#include <stdio.h>
#include <stdlib.h>

void shortest_f32(char text[32], float x) {
    int digits = 1;
    do {
        snprintf(text, 32, "%.*g", digits++, (double)x);
    } while (strtof(text, NULL) != x && digits <= 9);
}

void shortest_f64(char text[32], double x) {
    int digits = 1;
    do {
        snprintf(text, 32, "%.*g", digits++, x);
    } while (strtod(text, NULL) != x && digits <= 17);
}
