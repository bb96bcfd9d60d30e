// SHA-256 in hexadecimal, by libsodium: the fingerprint of tokenizer files. Python's hashlib and `sha256sum`
// compute the same.
#ifndef STARRING_SHARED_DATA_SHA256_H
#define STARRING_SHARED_DATA_SHA256_H

#include <sodium/crypto_hash_sha256.h>
#include <stddef.h>

struct sha256 {
    crypto_hash_sha256_state state;
};

void sha256_init(struct sha256 *s);
void sha256_update(struct sha256 *s, const void *data, size_t bytes);
// Writes 64 hexadecimal digits and a NUL. s must be initialised again before it is used again.
void sha256_finish(struct sha256 *s, char hex[65]);

// Hashes a file in blocks. Returns 0, or -1 without logging (errno is set) if it cannot be read.
int sha256_file(const char *path, char hex[65]);

#endif
