#include "shared/core/format.h"

#include <stdio.h>

#define FEW_BYTES 10000  // fewer are written out: they would be 0.00 MiB

const char *format_bytes(char text[24], double bytes) {
    static const char *const unit[] = {"MiB", "GiB", "TiB", "PiB"};
    if (bytes < FEW_BYTES) {
        snprintf(text, 24, "%.0f B", bytes);
        return text;
    }
    double x = bytes / (1 << 20);
    int i = 0;
    while (x >= 999.5 && i < 3) {
        x /= 1024;
        i++;
    }
    int decimals = x >= 99.95 ? 0 : x >= 9.995 ? 1 : 2;
    snprintf(text, 24, "%.*f %s", decimals, x, unit[i]);
    return text;
}

const char *format_count(char text[32], int64_t n) {
    char digits[32];
    int length = snprintf(digits, sizeof digits, "%lld", (long long)n);
    int out = 0;
    for (int i = 0; i < length; i++) {
        if (i && (length - i) % 3 == 0 && digits[i - 1] != '-') text[out++] = ',';
        text[out++] = digits[i];
    }
    text[out] = 0;
    return text;
}
