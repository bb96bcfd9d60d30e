// The hosts of a run that this program starts over ssh: --hosts h1:2,h2:2, or the lines of a --hostfile.
//
//     # as Open MPI and DeepSpeed write them
//     h1 slots=2
//     user@h2 slots=2       of Open MPI also max_slots=N, which is no less than slots
//     h3                    one slot
//
// Ranks follow the order of the hosts: h1 has ranks 0 and 1.
#ifndef STARRING_SHARED_LAUNCH_HOSTS_H
#define STARRING_SHARED_LAUNCH_HOSTS_H

#define HOSTS_RANKS_MAX 65536

struct host {
    char *login;       // as ssh takes it: "user@h2", an IPv6 address without brackets
    const char *name;  // behind the user, in login
    int slots, first;  // its ranks: so many, from this one on
};

struct hosts {
    struct host *host;
    int count, ranks;
};

// Of "h1:2,h2"; without a number: 1. 0, or -1 after naming the part that makes no sense; hosts_free either way.
int hosts_parse(struct hosts *out, const char *list);
int hosts_read(struct hosts *out, const char *path);
void hosts_free(struct hosts *h);

#endif
