// Roles of one test process are of one user and know one secret, as a launcher's children do.
#ifndef STARRING_TESTS_TRUST_TRUST_HELPER_H
#define STARRING_TESTS_TRUST_TRUST_HELPER_H

#include <pthread.h>
#include <stdlib.h>

#include "ps/trust/trust.h"

static inline const struct ps_trust *trust_of_test(enum ps_role role) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static struct ps_trust opened[PS_ROLES];
    static bool is_open[PS_ROLES];
    static struct config config;
    pthread_mutex_lock(&lock);
    config.ps.bind = (char *)"tcp://127.0.0.1:*";
    setenv(JOB_SECRET_VARIABLE, "the secret of this test alone, which nobody else is told", 0);
    const struct trust_request r = {.config = &config, .role = role, .address = "tcp://127.0.0.1:*"};
    if (!is_open[role] && trust_open(&opened[role], &r) != 0) abort();
    is_open[role] = true;
    pthread_mutex_unlock(&lock);
    return &opened[role];
}

#endif
