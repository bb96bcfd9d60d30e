#include "shared/data/sha256.h"

#include <sodium/utils.h>
#include <stdio.h>

#include "shared/core/file.h"

void sha256_init(struct sha256 *s) { crypto_hash_sha256_init(&s->state); }

void sha256_update(struct sha256 *s, const void *data, size_t bytes) {
    crypto_hash_sha256_update(&s->state, data, bytes);
}

void sha256_finish(struct sha256 *s, char hex[65]) {
    unsigned char digest[crypto_hash_sha256_BYTES];
    crypto_hash_sha256_final(&s->state, digest);
    sodium_bin2hex(hex, 65, digest, sizeof digest);
}

int sha256_file(const char *path, char hex[65]) {
    char why[FILE_WHY_MAX];
    FILE *f = file_open_stream(path, why);
    if (!f) return -1;
    struct sha256 s;
    char piece[1 << 15];
    sha256_init(&s);
    for (size_t n; (n = fread(piece, 1, sizeof piece, f)) > 0;) sha256_update(&s, piece, n);
    int rc = ferror(f) ? -1 : 0;
    fclose(f);
    sha256_finish(&s, hex);
    return rc;
}
