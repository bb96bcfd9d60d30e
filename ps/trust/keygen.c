#include "ps/trust/keygen.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ps/trust/key_files.h"
#include "shared/command/commands.h"
#include "shared/core/error.h"
#include "shared/core/path.h"
#include "shared/core/text.h"

#define SERVERS_MAX 4096  // as parameter_server.servers

struct making {
    const char *dir;
    struct allow_list *list;
    struct trust_owner *written;  // whose files are there by now
    int count;
};

// The directory is there, is this user's, and has no keys yet.
static int open_dir(const char *dir) {
    if (mkdir(dir, 0700) == 0) return 0;
    if (errno != EEXIST) return fail("%s: %s", dir, strerror(errno));
    if (trust_dir_check(dir)) return -1;
    DIR *d = opendir(dir);
    int rc = 0;
    if (!d) return fail("%s: %s", dir, strerror(errno));
    for (const struct dirent *e = readdir(d); e && !rc; e = readdir(d))
        if (ends_with(e->d_name, ".key") || !strcmp(e->d_name, TRUST_PUBLIC))
            rc = fail(
                "%s has %s already: starring keygen replaces no key; choose another directory, or remove this one",
                dir, e->d_name);
    closedir(d);
    return rc;
}

static int make_key(struct making *m, struct trust_owner o) {
    struct trust_pair pair;
    int rc = trust_pair_make(&pair);
    if (!rc) rc = trust_key_write(m->dir, o, &pair);
    if (!rc) m->written[m->count++] = o;
    if (!rc && allow_list_add(m->list, o, pair.public_key))
        rc = fail("two equal keys: this machine has no random numbers");
    trust_pair_forget(&pair);
    return rc;
}

// All of them, or none is left behind.
static int make_keys(struct making *m, int servers, int workers) {
    int rc = make_key(m, (struct trust_owner){PS_SCHEDULER, 0});
    for (int r = 0; r < servers && !rc; r++) rc = make_key(m, (struct trust_owner){PS_SERVER, r});
    for (int r = 0; r < workers && !rc; r++) rc = make_key(m, (struct trust_owner){PS_WORKER, r});
    if (!rc) rc = allow_list_write(m->list, m->dir);
    for (int i = 0; i < m->count && rc; i++) {
        char *path = trust_key_path(m->dir, m->written[i]);
        unlink(path);
        free(path);
    }
    return rc;
}

static int keygen(const struct topology_table *t, const struct cli_args *args) {
    (void)t;
    long servers, workers;
    if (args->word_count != 1) {
        char program[PROGRAM_WORD];
        fail("keygen: in which directory? See %s keygen --help", program_word(program));
        return EXIT_USAGE;
    }
    if (cli_integer(args, "workers", 1, TRUST_RANKS_MAX, 2, &workers) ||
        cli_integer(args, "servers", 1, SERVERS_MAX, 1, &servers))
        return EXIT_USAGE;
    const char *dir = args->words[0];
    if (open_dir(dir)) return EXIT_RUN_FAILED;
    struct making m = {dir, allow_list_create(), xcalloc((size_t)(1 + servers + workers), sizeof *m.written),
                       0};
    int rc = make_keys(&m, (int)servers, (int)workers);
    allow_list_destroy(&m.list);
    free(m.written);
    if (rc) return EXIT_RUN_FAILED;
    printf(
        "%s has the keys of a scheduler, %ld server%s and %ld worker%s: give every role --keys %s\n"
        "Another machine gets " TRUST_PUBLIC
        " and the .key files of its own roles alone, by a way that nobody listens to:\n"
        "    ssh HOST mkdir -m 700 keys && scp -p %s/" TRUST_PUBLIC " %s/worker-%ld.key HOST:keys/\n",
        dir, servers, servers == 1 ? "" : "s", workers, workers == 1 ? "" : "s", dir, dir, dir, workers - 1);
    return 0;
}

int keygen_command(const struct topology_table *t, int argc, char **argv) {
    return cli_run(&command_keygen, t, argc, argv, keygen);
}
