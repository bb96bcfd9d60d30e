// A role's key and the list of who may join (ps/trust), the first byte says which. What is read and written again reads as
// the same.
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ps/trust/key_files.h"
#include "shared/core/error.h"
#include "tests/fuzz/fuzz.h"

static const struct trust_owner owner = {PS_WORKER, 3};

static void read_key(void) {
    struct trust_pair pair, again;
    error_clear();
    int rc = trust_key_read(fuzz_dir(), owner, &pair);
    FUZZ_CHECK(rc == 0 || error_last()[0], "refused in silence");
    if (rc) return;
    fuzz_make_dir("again");
    char *dir = fuzz_path("again"), *path = trust_key_path(dir, owner);
    unlink(path);
    FUZZ_CHECK(trust_key_write(dir, owner, &pair) == 0 && trust_key_read(dir, owner, &again) == 0,
               "as written it is refused: %s", error_last());
    FUZZ_CHECK(memcmp(&pair, &again, sizeof pair) == 0, "another key");
    free(dir);
    free(path);
}

static void read_list(void) {
    error_clear();
    struct allow_list *list = allow_list_read(fuzz_dir());
    FUZZ_CHECK(list || error_last()[0], "refused in silence");
    if (!list) return;
    for (int role = 0; role < PS_ROLES; role++) {
        FUZZ_CHECK(allow_list_count(list, (enum ps_role)role) >= 0, "fewer than no keys");
        for (int rank = 0; rank < 4; rank++) {
            struct trust_owner o = {(enum ps_role)role, rank}, found;
            const uint8_t *key = allow_list_key(list, o);
            FUZZ_CHECK(!key || (allow_list_owner(list, key, &found) && trust_owner_same(found, o)),
                       "a key of two roles");
        }
    }
    allow_list_destroy(&list);
}

FUZZ_TARGET(keys) {
    struct fuzz_bytes in = {data, size};
    if (fuzz_below(&in, 2)) {
        fuzz_put("worker-3.key", in.p, in.left);
        read_key();
    } else {
        fuzz_put(TRUST_PUBLIC, in.p, in.left);
        read_list();
    }
}
