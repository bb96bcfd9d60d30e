#include "ps/job/placement.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/core/error.h"
#include "shared/core/text.h"

// The first rank of the machine that the word names, whose length is n; -1: there is none.
static int rank_on(const char *word, size_t n, const struct rank_place *ranks, int count) {
    int number = -1;
    const char *end = text_count(word, &number);
    bool numbered = end && end == word + n;
    for (int r = 0; r < count; r++)
        if (ranks[r].machine >= 0 &&
            (numbered ? ranks[r].machine == number
                      : strlen(ranks[r].host) == n && !strncmp(ranks[r].host, word, n)))
            return r;
    return -1;
}

static int refuse(const char *servers_on, const char *word, size_t n, const struct rank_place *ranks,
                  int count) {
    char names[200] = "";
    size_t at = 0;
    for (int r = 0, next = 0; r < count; r++) {
        if (ranks[r].machine != next) continue;
        if (at + 80 < sizeof names)
            at += (size_t)snprintf(names + at, sizeof names - at, "%s%d %.60s", next ? ", " : "", next,
                                   ranks[r].host);
        next++;
    }
    return fail(
        "--servers-on %s: %.*s is no machine of this job, which has %s: give hosts, workers, or a list of these numbers or "
        "names",
        servers_on, (int)n, word, names);
}

int placement_servers(const char *servers_on, const struct rank_place *ranks, int count, int servers,
                      int *rank_of) {
    int *turn = xcalloc((size_t)count + strlen(servers_on), sizeof *turn), turns = 0, rc = 0;
    if (!strcmp(servers_on, "workers")) {
        for (int r = 0; r < count; r++) turn[turns++] = r;
    } else if (!strcmp(servers_on, "hosts")) {
        for (int r = 0; r < count; r++)
            if (ranks[r].machine == turns) turn[turns++] = r;
    } else {
        for (const char *word = servers_on; word && !rc;
             word = strchr(word, ',') ? strchr(word, ',') + 1 : NULL) {
            size_t n = strcspn(word, ",");
            turn[turns] = rank_on(word, n, ranks, count);
            if (turn[turns++] < 0) rc = refuse(servers_on, word, n, ranks, count);
        }
    }
    for (int s = 0; s < servers && !rc; s++) rank_of[s] = turn[s % turns];
    free(turn);
    return rc;
}
