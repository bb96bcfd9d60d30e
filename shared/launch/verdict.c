#include "shared/launch/verdict.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/fabric/peer.h"

static void say_done(struct verdicts *v, bool done) {
    char said = done;
    if (v->done != done) rendezvous_say(v->meet, VERDICT_DONE, &said, 1);
    v->done = done;
}

void verdict_done(struct verdicts *v) { say_done(v, true); }

void verdict_ask(void *verdicts, const struct death *d) {
    rendezvous_say(((struct verdicts *)verdicts)->meet, VERDICT_DEAD, d, sizeof *d);
}

bool verdict_death(const struct member_news *n, struct death *out) {
    if (n->kind != MEMBER_SAID || strcmp(n->word, VERDICT_DEAD) != 0 || n->bytes != sizeof *out) return false;
    memcpy(out, n->data, sizeof *out);
    out->name[sizeof out->name - 1] = out->why[sizeof out->why - 1] = 0;
    return true;
}

void verdict_say(struct rendezvous *meet, int *said, const struct verdict *v) {
    char name[MEET_NAME_MAX];
    snprintf(name, sizeof name, VERDICT_SAID, (*said)++);
    rendezvous_put(meet, name, v, sizeof *v);
}

bool verdict_hear(void *verdicts, struct verdict *out) {
    struct verdicts *v = verdicts;
    char name[48];
    size_t bytes;
    snprintf(name, sizeof name, VERDICT_SAID, v->heard);
    void *said = rendezvous_look(v->meet, name, &bytes);
    bool whole = said && bytes == sizeof *out;
    v->heard += said != NULL;
    if (whole) memcpy(out, said, sizeof *out);
    free(said);
    if (!whole) return false;
    out->name[sizeof out->name - 1] = out->reason[sizeof out->reason - 1] = 0;
    if (out->again || out->kind == VERDICT_ANEW) say_done(v, false);
    return true;
}
