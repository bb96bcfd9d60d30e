// SHA-256 (FIPS 180-4): the fingerprint of tokenizer files, which hashlib and `sha256sum` compute as well.
#ifndef STARRING_SHARED_CORE_SHA256_H
#define STARRING_SHARED_CORE_SHA256_H

#include <stddef.h>
#include <stdint.h>

struct sha256 {
    uint32_t state[8];
    uint64_t bytes;             // taken so far
    unsigned char pending[64];  // bytes % 64 of them are waiting for a whole block
};

void sha256_init(struct sha256 *s);
void sha256_update(struct sha256 *s, const void *data, size_t bytes);
// 64 hexadecimal digits and a NUL; s must be initialised again before it is used again.
void sha256_finish(struct sha256 *s, char hex[65]);

// Of a file, read in pieces. 0, or -1 without a message (errno says why) when it cannot be read.
int sha256_file(const char *path, char hex[65]);

#endif
