#include "shared/core/sha256.h"

#include <stdio.h>
#include <string.h>

// FIPS 180-4, section 4.2.2: the fractional parts of the cube roots of the first 64 primes.
static const uint32_t constants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t turn(uint32_t x, int by) { return x >> by | x << (32 - by); }

static uint32_t read_big_endian(const unsigned char *p) {
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

// Section 6.2.2, with the standard's names.
static void take_block(uint32_t state[8], const unsigned char block[64]) {
    uint32_t w[64], v[8];
    for (int t = 0; t < 16; t++) w[t] = read_big_endian(block + 4 * t);
    for (int t = 16; t < 64; t++) {
        uint32_t s0 = turn(w[t - 15], 7) ^ turn(w[t - 15], 18) ^ w[t - 15] >> 3;
        uint32_t s1 = turn(w[t - 2], 17) ^ turn(w[t - 2], 19) ^ w[t - 2] >> 10;
        w[t] = s1 + w[t - 7] + s0 + w[t - 16];
    }
    memcpy(v, state, sizeof v);
    for (int t = 0; t < 64; t++) {
        uint32_t a = v[0], b = v[1], c = v[2], e = v[4], f = v[5], g = v[6];
        uint32_t t1 =
            v[7] + (turn(e, 6) ^ turn(e, 11) ^ turn(e, 25)) + ((e & f) ^ (~e & g)) + constants[t] + w[t];
        uint32_t t2 = (turn(a, 2) ^ turn(a, 13) ^ turn(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
        memmove(v + 1, v, 7 * sizeof *v);
        v[4] += t1;
        v[0] = t1 + t2;
    }
    for (int i = 0; i < 8; i++) state[i] += v[i];
}

void sha256_init(struct sha256 *s) {
    // Section 5.3.3: the fractional parts of the square roots of the first 8 primes.
    *s = (struct sha256){.state = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c,
                                   0x1f83d9ab, 0x5be0cd19}};
}

void sha256_update(struct sha256 *s, const void *data, size_t bytes) {
    const unsigned char *p = data;
    while (bytes > 0) {
        size_t at = s->bytes % 64, n = 64 - at < bytes ? 64 - at : bytes;
        memcpy(s->pending + at, p, n);
        s->bytes += n;
        p += n;
        bytes -= n;
        if (s->bytes % 64 == 0) take_block(s->state, s->pending);
    }
}

void sha256_finish(struct sha256 *s, char hex[65]) {
    uint64_t bits = s->bytes * 8;
    unsigned char length[8];
    for (int i = 0; i < 8; i++) length[i] = (unsigned char)(bits >> (56 - 8 * i));
    // Section 5.1.1: a one bit, zeros up to 56 bytes of a block, the length.
    sha256_update(s, "\x80", 1);
    while (s->bytes % 64 != 56) sha256_update(s, "", 1);
    sha256_update(s, length, sizeof length);
    for (int i = 0; i < 8; i++) snprintf(hex + 8 * i, 9, "%08x", s->state[i]);
}

int sha256_file(const char *path, char hex[65]) {
    FILE *f = fopen(path, "rb");
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
