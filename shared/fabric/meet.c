#include "shared/fabric/meet.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/core/error.h"

struct meet_message meet_message(enum meet_kind kind, int rank, uint64_t incarnation) {
    return (struct meet_message){.magic = MEET_MAGIC, .kind = kind, .rank = rank, .incarnation = incarnation};
}

void *meet_copy(const void *data, size_t bytes) {
    char *own = xcalloc(1, bytes + 1);
    if (bytes) memcpy(own, data, bytes);
    return own;
}

bool meet_due(double *said_s, double every_s, double now_s) {
    bool is = now_s - *said_s >= every_s;
    if (is) *said_s = now_s;
    return is;
}

int meet_members(int size, const struct meet_role roles[MEET_ROLES_MAX]) {
    for (int i = 0; i < MEET_ROLES_MAX; i++) size += roles[i].count;
    return size;
}

const char *meet_member_name(int member, int size, const struct meet_role roles[MEET_ROLES_MAX],
                             char out[MEET_WHO_MAX]) {
    out[0] = 0;
    if (member < 0) return out;
    if (member < size) snprintf(out, MEET_WHO_MAX, "rank %d", member);
    long at = (long)member - size;  // a stranger's number may be out of range
    for (int i = 0; i < MEET_ROLES_MAX; at -= roles[i++].count)
        if (at >= 0 && at < roles[i].count) snprintf(out, MEET_WHO_MAX, "%s %ld", roles[i].word, at);
    return out;
}

// ---------------------------------------------------------------- the table of ranks
struct home {
    char host[64], address[64];
};
struct seated {
    int32_t home, machine, local_rank, pid;
};

void *meet_table_write(const struct rendezvous_member *members, int size, size_t *bytes) {
    struct home *homes = xcalloc((size_t)size, sizeof *homes);
    struct seated *all = xcalloc((size_t)size, sizeof *all);
    int32_t count = 0;
    for (int i = 0; i < size; i++) {
        const struct rendezvous_member *m = &members[i];
        struct home h = {0};
        memcpy(h.host, m->host, sizeof h.host);
        memcpy(h.address, m->address, sizeof h.address);
        int at = count - 1;  // ranks of one machine are mostly consecutive
        while (at >= 0 && memcmp(&homes[at], &h, sizeof h) != 0) at--;
        if (at < 0) homes[at = count++] = h;
        all[i] = (struct seated){at, m->machine, m->local_rank, m->pid};
    }
    size_t of_homes = (size_t)count * sizeof *homes, of_all = (size_t)size * sizeof *all;
    char *out = xcalloc(1, sizeof count + of_homes + of_all + 1);
    *bytes = sizeof count + of_homes + of_all;
    memcpy(out, &count, sizeof count);
    memcpy(out + sizeof count, homes, of_homes);
    memcpy(out + sizeof count + of_homes, all, of_all);
    free(homes);
    free(all);
    return out;
}

struct rendezvous_member *meet_table_read(const void *data, size_t bytes, int size) {
    const char *at = data;
    int32_t count;
    if (bytes < sizeof count) return NULL;
    memcpy(&count, at, sizeof count);
    size_t of_homes = (size_t)count * sizeof(struct home);
    if (count < 0 || count > size || bytes != sizeof count + of_homes + (size_t)size * sizeof(struct seated))
        return NULL;
    struct rendezvous_member *members = xcalloc((size_t)size, sizeof *members);
    for (int i = 0; i < size; i++) {
        struct seated s;
        struct home h;
        memcpy(&s, at + sizeof count + of_homes + (size_t)i * sizeof s, sizeof s);
        if (s.home < 0 || s.home >= count || s.machine < -1 || s.machine >= size) {
            free(members);
            return NULL;
        }
        memcpy(&h, at + sizeof count + (size_t)s.home * sizeof h, sizeof h);
        h.host[sizeof h.host - 1] = h.address[sizeof h.address - 1] = 0;
        members[i] =
            (struct rendezvous_member){.machine = s.machine, .local_rank = s.local_rank, .pid = s.pid};
        memcpy(members[i].host, h.host, sizeof h.host);
        memcpy(members[i].address, h.address, sizeof h.address);
    }
    return members;
}
