#include "ps/job/security.h"

#include "shared/fabric/address.h"

enum ps_security ps_security_of(const struct config *c) {
    struct endpoint at;
    bool local = !c->ps.bind || (!endpoint_read(NULL, c->ps.bind, &at) && address_is_loopback(at.host));
    return c->security.insecure ? PS_INSECURE : local ? PS_LOOPBACK : PS_JOB;
}

const char *ps_security_name(const struct config *c) {
    static const char *const names[] = {"loopback", "job", "insecure"};
    return names[ps_security_of(c)];
}

const char *ps_security_words(const struct config *c) {
    static const char *const words[] = {
        "loopback: processes of this host that have the job's key",
        "job: processes that have the job's key, and everything is encrypted",
        "insecure: ANYBODY WHO REACHES THE PORTS CAN JOIN, READ AND CHANGE THE RUN (--insecure; safer: a key)"};
    return words[ps_security_of(c)];
}
