// Z85 (ZeroMQ's RFC 32): 4 bytes as 5 printable characters, which is how people see ZeroMQ's keys.
#ifndef STARRING_PS_TRUST_Z85_H
#define STARRING_PS_TRUST_Z85_H

#include <stddef.h>
#include <stdint.h>

#define Z85_KEY_CHARS 40  // of 32 bytes

// 32 bytes as 40 characters and a zero.
void z85_key_text(const uint8_t key[32], char text[Z85_KEY_CHARS + 1]);
// The same read. 0, or -1: not exactly 40 characters of Z85, or a number too large.
int z85_key_read(const char *text, uint8_t key[32]);

#endif
