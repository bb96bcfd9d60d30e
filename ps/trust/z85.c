#include "ps/trust/z85.h"

#include <string.h>
#include <zmq.h>

void z85_key_text(const uint8_t key[32], char text[Z85_KEY_CHARS + 1]) { zmq_z85_encode(text, key, 32); }

int z85_key_read(const char *text, uint8_t key[32]) {
    return strlen(text) == Z85_KEY_CHARS && zmq_z85_decode(key, text) ? 0 : -1;
}
