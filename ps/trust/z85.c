#include "ps/trust/z85.h"

#include <string.h>

static const char digits[] =
    "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#";

void z85_key_text(const uint8_t key[32], char text[Z85_KEY_CHARS + 1]) {
    for (int group = 0; group < 8; group++) {
        const uint8_t *four = key + 4 * (size_t)group;
        uint32_t value = (uint32_t)four[0] << 24 | (uint32_t)four[1] << 16 | (uint32_t)four[2] << 8 | four[3];
        for (int i = 4; i >= 0; i--, value /= 85) text[5 * group + i] = digits[value % 85];
    }
    text[Z85_KEY_CHARS] = 0;
}

int z85_key_read(const char *text, uint8_t key[32]) {
    if (strlen(text) != Z85_KEY_CHARS) return -1;
    for (int group = 0; group < 8; group++) {
        uint64_t value = 0;
        for (int i = 0; i < 5; i++) {
            const char *digit = strchr(digits, text[5 * group + i]);
            if (!digit) return -1;
            value = 85 * value + (uint64_t)(digit - digits);
        }
        if (value > UINT32_MAX) return -1;
        for (int i = 0; i < 4; i++) key[4 * group + i] = (uint8_t)(value >> (24 - 8 * i));
    }
    return 0;
}
