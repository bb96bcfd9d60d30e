#include "ps/scheduler/launcher_link.h"

#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "shared/core/text.h"

static void say(const struct launcher_link *l, const char *line) {
    if (l->fd <= 0) return;
    ssize_t sent = send(l->fd, line, strlen(line), MSG_DONTWAIT | MSG_NOSIGNAL);
    (void)sent;  // a launcher that does not read has ended, and the job with it
}

void launcher_link_lost(const struct launcher_link *l, int pid, const char *name) {
    char line[80];
    snprintf(line, sizeof line, "lost %d %s\n", pid, name);
    say(l, line);
}

void launcher_link_life(const struct launcher_link *l) { say(l, "life\n"); }

void launcher_link_alive(const struct launcher_link *l, int64_t steps) {
    char line[64];
    snprintf(line, sizeof line, "alive %d %lld\n", (int)getpid(), (long long)steps);
    say(l, line);
}

void launcher_link_leaves(const struct launcher_link *l) { say(l, "alive 0 -1\n"); }

void launcher_link_fate(const struct launcher_link *l, int pid, const char *fate, const char *reason) {
    char line[300];
    snprintf(line, sizeof line, "fate %d %s %s\n", pid, fate, TEXT_WORDS(240, reason));
    say(l, line);
}

// Takes the first line out of what has come. Text that is longer than any line is dropped.
static bool next_line(struct launcher_link *l, char line[sizeof l->text]) {
    char *end = memchr(l->text, '\n', l->length);
    if (!end && l->length == sizeof l->text) l->length = 0;
    if (!end) return false;
    size_t size = (size_t)(end - l->text);
    memcpy(line, l->text, size);
    line[size] = 0;
    l->length -= size + 1;
    memmove(l->text, end + 1, l->length);
    return true;
}

bool launcher_link_dead(struct launcher_link *l, int *pid, char why[WIRE_TEXT_MAX]) {
    char line[sizeof l->text];
    if (l->fd <= 0) return false;
    for (;;) {
        int begin = 0;
        while (next_line(l, line))
            if (sscanf(line, "dead %d %n", pid, &begin) == 1 && begin > 0) {
                snprintf(why, WIRE_TEXT_MAX, "%.*s", WIRE_TEXT_MAX - 1, line + begin);
                return true;
            }
        ssize_t got = recv(l->fd, l->text + l->length, sizeof l->text - l->length, MSG_DONTWAIT);
        if (got <= 0) return false;
        l->length += (size_t)got;
    }
}
