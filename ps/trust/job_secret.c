#include "ps/trust/job_secret.h"

#include <errno.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "ps/trust/z85.h"
#include "shared/core/error.h"

static int fill(void *bytes, size_t count) {
    ssize_t got;
    while ((got = getrandom(bytes, count, 0)) < 0 && errno == EINTR) continue;
    return got == (ssize_t)count ? 0 : fail("no random numbers: %s", strerror(errno));
}

int job_secret_make(uint8_t secret[JOB_SECRET_BYTES]) { return fill(secret, JOB_SECRET_BYTES); }

int job_secret_given(uint8_t secret[JOB_SECRET_BYTES]) {
    const char *text = getenv(JOB_SECRET_VARIABLE);
    if (!text || !*text) return 0;
    size_t length = strlen(text);
    if (length < JOB_SECRET_TEXT_MIN)
        return fail("the environment's " JOB_SECRET_VARIABLE
                    " has %zu characters: give every role the same %d or more, or leave it out",
                    length, JOB_SECRET_TEXT_MIN);
    crypto_generichash(secret, JOB_SECRET_BYTES, (const unsigned char *)text, length, NULL, 0);
    return 1;
}

// Only the environment of the children holds it: what setenv adds is not in this process's own /proc/PID/environ.
int job_secret_hand_down(void) {
    uint8_t secret[JOB_SECRET_BYTES];
    char text[2 * JOB_SECRET_BYTES + 1];
    int rc = job_secret_given(secret);
    if (rc == 0 && (rc = job_secret_make(secret)) == 0) {
        sodium_bin2hex(text, sizeof text, secret, sizeof secret);
        if (setenv(JOB_SECRET_VARIABLE, text, 1) != 0)
            rc = fail("cannot hand down " JOB_SECRET_VARIABLE ": %s", strerror(errno));
        sodium_memzero(text, sizeof text);
    }
    job_secret_forget(secret);
    return rc < 0 ? -1 : 0;
}

void job_secret_pair(const uint8_t secret[JOB_SECRET_BYTES], const char *purpose, struct trust_pair *out) {
    uint8_t seed[crypto_box_SEEDBYTES];
    crypto_generichash(seed, sizeof seed, (const unsigned char *)purpose, strlen(purpose), secret,
                       JOB_SECRET_BYTES);
    crypto_box_seed_keypair(out->public_key, out->secret_key, seed);
    sodium_memzero(seed, sizeof seed);
}

void job_secret_forget(uint8_t secret[JOB_SECRET_BYTES]) { sodium_memzero(secret, JOB_SECRET_BYTES); }

int trust_token_make(char token[TRUST_TOKEN_MAX]) {
    uint8_t bytes[JOB_SECRET_BYTES];
    if (fill(bytes, sizeof bytes) != 0) return -1;
    z85_key_text(bytes, token);
    job_secret_forget(bytes);
    return 0;
}
