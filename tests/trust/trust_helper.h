// Roles of one test process have one key, as a launcher's children do.
#ifndef STARRING_TESTS_TRUST_TRUST_HELPER_H
#define STARRING_TESTS_TRUST_TRUST_HELPER_H

#include "shared/fabric/job_key.h"

static inline const struct job_key *key_of_test(void) {
    static const struct job_key key = {{"the key of this test alone, and "}};
    return &key;
}

#endif
