#include "shared/fabric/job_key.h"

#include <errno.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "shared/core/error.h"

#define DIGITS (JOB_KEY_TEXT - 1)

_Static_assert(JOB_PAIR_BYTES == crypto_box_PUBLICKEYBYTES && JOB_PAIR_BYTES == crypto_box_SECRETKEYBYTES,
               "a pair is libsodium's");

static int fill(void *bytes, size_t count) {
    ssize_t got;
    while ((got = getrandom(bytes, count, 0)) < 0 && errno == EINTR) continue;
    return got == (ssize_t)count ? 0 : fail("no random numbers: %s", strerror(errno));
}

int job_key_make(struct job_key *out) { return fill(out->bytes, sizeof out->bytes); }

static bool is_key(const char *text, struct job_key *out) {
    size_t bytes = 0;
    return strlen(text) == DIGITS &&
           !sodium_hex2bin(out->bytes, sizeof out->bytes, text, DIGITS, NULL, &bytes, NULL) &&
           bytes == sizeof out->bytes;
}

int job_key_given(struct job_key *out) {
    const char *text = getenv(JOB_KEY_VARIABLE);
    if (getenv("STARRING_JOB_SECRET"))
        return fail(
            "STARRING_JOB_SECRET is no longer read: all processes of a job have one key, " JOB_KEY_MAKE);
    if (!text || !*text) return 0;
    if (sodium_init() < 0) return fail("libsodium does not start");
    if (is_key(text, out)) return 1;
    job_key_forget(out);
    return fail(JOB_KEY_VARIABLE
                " is not %d hexadecimal digits: make one for all processes of the job: " JOB_KEY_MAKE,
                DIGITS);
}

int job_key_open(bool insecure, struct job_key *out) {
    int given = job_key_given(out);
    if (given < 0 || (given && !insecure) || (!given && insecure)) return given;
    job_key_forget(out);
    if (insecure)
        return fail("--insecure admits every process, and " JOB_KEY_VARIABLE
                    " only those that have it: leave one of them out");
    return fail(
        "no key: any process that reaches this address could join the job. Give all its processes the same one: " JOB_KEY_MAKE
        " (docs/security.md); or all of them --insecure, so that any process may join");
}

// setenv changes only the environment of the children, not this process's /proc/PID/environ.
int job_key_hand_down(void) {
    struct job_key key;
    char text[JOB_KEY_TEXT];
    int rc = job_key_given(&key);
    if (rc == 0 && (rc = job_key_make(&key)) == 0) {
        job_key_text(&key, text);
        if (setenv(JOB_KEY_VARIABLE, text, 1))
            rc = fail("cannot hand down " JOB_KEY_VARIABLE ": %s", strerror(errno));
        sodium_memzero(text, sizeof text);
    }
    job_key_forget(&key);
    return rc < 0 ? -1 : 0;
}

void job_key_text(const struct job_key *k, char text[JOB_KEY_TEXT]) {
    sodium_bin2hex(text, JOB_KEY_TEXT, k->bytes, sizeof k->bytes);
}

void job_key_forget(struct job_key *k) { sodium_memzero(k, sizeof *k); }

// ---------------------------------------------------------------- key pairs and tokens
static void pair_of(const struct job_key *k, const char *purpose, uint8_t *public_key, uint8_t *secret_key) {
    uint8_t seed[crypto_box_SEEDBYTES];
    crypto_generichash(seed, sizeof seed, (const uint8_t *)purpose, strlen(purpose), k->bytes,
                       sizeof k->bytes);
    crypto_box_seed_keypair(public_key, secret_key, seed);
    sodium_memzero(seed, sizeof seed);
}

void job_pairs_of(const struct job_key *k, struct job_pairs *out) {
    pair_of(k, "starring listens", out->listen_public, out->listen_secret);
    pair_of(k, "starring connects", out->connect_public, out->connect_secret);
}

void job_pairs_forget(struct job_pairs *p) { sodium_memzero(p, sizeof *p); }

int job_token_make(char token[JOB_TOKEN_MAX]) {
    uint8_t bytes[JOB_TOKEN_MAX / 2];
    if (fill(bytes, sizeof bytes)) return -1;
    sodium_bin2hex(token, JOB_TOKEN_MAX, bytes, sizeof bytes);
    return 0;
}
