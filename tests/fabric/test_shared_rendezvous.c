// The rendezvous with real processes and sockets: each rank is a process, what it says of its failure comes back through a
// pipe.
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "shared/core/error.h"
#include "shared/fabric/address.h"
#include "shared/fabric/rendezvous.h"

#define KEY "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"

typedef int rank_body(struct rendezvous *r, int rank, int size);

struct child {
    pid_t pid;
    int out;  // its last error
    char said[1024];
    int status;
};

// A port that nobody has now.
static int free_port(void) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &size), 0);
    close(fd);
    return ntohs(a.sin_port);
}

static struct rendezvous_options options(int port, int rank, int size, double deadline_s) {
    return (struct rendezvous_options){.host = "127.0.0.1",
                                       .port = port,
                                       .rank = rank,
                                       .size = size,
                                       .identity = "{\"steps\":\"1\"}",
                                       .deadline_s = deadline_s};
}

static struct child start(const struct rendezvous_options *o, const char *key, rank_body *body) {
    struct child c;
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    fflush(NULL);
    c.pid = fork();
    if (c.pid == 0) {
        close(ends[0]);
        error_quiet(QUIET_ALL);
        if (key) setenv("STARRING_JOB_KEY", key, 1);
        struct rendezvous *r = rendezvous_open(o);
        int rc = r ? body ? body(r, o->rank, o->size) : 0 : 1;
        rc = rendezvous_close(&r) || rc;
        if (rc && write(ends[1], error_last(), strlen(error_last())) < 0) _exit(9);
        _exit(rc);
    }
    close(ends[1]);
    c.out = ends[0];
    return c;
}

static void end(struct child *c) {
    size_t n = 0;
    ssize_t got;
    while ((got = read(c->out, c->said + n, sizeof c->said - 1 - n)) > 0) n += (size_t)got;
    c->said[n] = 0;
    close(c->out);
    waitpid(c->pid, &c->status, 0);
}

static void is_said(const struct child *c, const char *words) {
    if (!strstr(c->said, words)) fail_msg("\"%s\" is not in \"%s\"", words, c->said);
}

static int talk(struct rendezvous *r, int rank, int size) {
    char name[32], value[64];
    int all[8];
    if (rendezvous_machines(r) != 1 || rendezvous_member(r, size - 1)->local_rank != size - 1)
        return (fail)("members");
    snprintf(name, sizeof name, "hello/%d", rank);
    snprintf(value, sizeof value, "from %d", rank);
    if (rendezvous_put(r, name, value, strlen(value))) return 1;
    for (int i = 0; i < size; i++) {
        size_t bytes;
        snprintf(name, sizeof name, "hello/%d", i);
        snprintf(value, sizeof value, "from %d", i);
        char *got = rendezvous_get(r, name, &bytes);
        if (!got || strcmp(got, value) != 0) return (fail)("rank %d got %s", rank, got ? got : "nothing");
        free(got);
    }
    for (int k = 0; k < 20; k++) {
        int mine = 100 * k + rank;
        if (rendezvous_allgather(r, &mine, sizeof mine, all)) return 1;
        for (int i = 0; i < size; i++)
            if (all[i] != 100 * k + i) return (fail)("round %d: %d", k, all[i]);
    }
    size_t big = (size_t)3 << 20;
    char *data = calloc(1, big);
    memset(data, 'x', big);
    if (rank == 1 && rendezvous_put(r, "big", data, big)) return 1;
    char *got = rendezvous_get(r, "big", &big);
    int rc = got && big == (size_t)3 << 20 && got[big - 1] == 'x' ? 0 : (fail)("big");
    free(got);
    free(data);
    return rc;
}

static void meet_and_talk(const char *key, const char *host) {
    struct child c[4];
    int port = free_port();
    for (int i = 3; i >= 0; i--) {
        struct rendezvous_options o = options(port, i, 4, 20);
        o.host = host;
        c[i] = start(&o, key, talk);
    }
    for (int i = 0; i < 4; i++) {
        end(&c[i]);
        assert_string_equal(c[i].said, "");
        assert_int_equal(c[i].status, 0);
    }
}

static void test_ranks_meet_and_talk(void **state) {
    (void)state;
    meet_and_talk(NULL, "127.0.0.1");
    meet_and_talk(KEY, "localhost");
}

static void test_one_never_comes(void **state) {
    (void)state;
    int port = free_port();
    struct rendezvous_options zero = options(port, 0, 4, 3), one = options(port, 1, 4, 3);
    struct child a = start(&zero, NULL, NULL), b = start(&one, NULL, NULL);
    end(&b);
    end(&a);
    char place[64];
    snprintf(place, sizeof place, "ranks 2-3 did not join at 127.0.0.1:%d within 3 s", port);
    is_said(&a, place);
    is_said(&b, place);
}

static void test_rank_0_never_comes(void **state) {
    (void)state;
    struct rendezvous_options one = options(free_port(), 1, 2, 1.5);
    struct child b = start(&one, NULL, NULL);
    end(&b);
    is_said(&b, "rank 1: nobody answers at 127.0.0.1:");
}

static void test_another_key(void **state) {
    (void)state;
    const char *other = "ff112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
    const char *const keys[][2] = {{KEY, other}, {KEY, NULL}, {NULL, KEY}};
    for (int i = 0; i < 3; i++) {
        int port = free_port();
        struct rendezvous_options zero = options(port, 0, 2, 6), one = options(port, 1, 2, 6);
        struct child a = start(&zero, keys[i][0], NULL), b = start(&one, keys[i][1], NULL);
        end(&b);
        if (i) kill(a.pid, SIGTERM);
        end(&a);
        is_said(
            &b,
            "does not let this process in: the job's key (STARRING_JOB_KEY) differs there, or one side has none");
        if (!i) is_said(&a, "a process tried to join with another STARRING_JOB_KEY, or with none");
    }
    struct rendezvous_options zero = options(free_port(), 0, 2, 6);
    struct child a = start(&zero, "0011", NULL);
    end(&a);
    is_said(&a, "STARRING_JOB_KEY is not 64 hexadecimal digits");
}

static void test_the_port_is_in_use(void **state) {
    (void)state;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof at;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
    listen(fd, 4);
    getsockname(fd, (struct sockaddr *)&at, &size);
    struct rendezvous_options zero = options(ntohs(at.sin_port), 0, 2, 6);
    struct child a = start(&zero, NULL, NULL);
    end(&a);
    close(fd);
    is_said(&a, "rank 0: cannot listen at 127.0.0.1:");
    is_said(&a, "Address already in use; give the job another port");
}

static void test_a_name_without_an_address(void **state) {
    (void)state;
    struct rendezvous_options one = options(free_port(), 1, 2, 2);
    one.host = "no-such-host.invalid";
    struct child b = start(&one, NULL, NULL);
    end(&b);
    is_said(&b, "no-such-host.invalid");
    one.host = "127.0.0.1", one.interface = "nowhere7";
    b = start(&one, NULL, NULL);
    end(&b);
    is_said(&b, "this machine has no interface nowhere7; it has ");
    is_said(&b, "lo (127.0.0.1)");
}

// As NCCL writes them.
static void test_lists_of_interfaces(void **state) {
    (void)state;
    static const struct {
        const char *list;
        bool lo;  // else there is none
    } rows[] = {{"lo", true},      {"l", true},        {"=lo", true},        {"nosuch9,lo", true},
                {"=l", false},     {"nosuch9", false}, {"127.0.0.1", true},  {"127.0.0", false},
                {"^l,e,i", false}, {"", false},        {"=nosuch9,lo", true}};
    char out[ADDRESS_MAX];
    error_quiet(QUIET_ALL);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int rc = address_own(rows[i].list, "127.0.0.1", out);
        if (rows[i].lo && (rc || strcmp(out, "127.0.0.1"))) fail_msg("%s: %d", rows[i].list, rc);
        if (!rows[i].lo && !rc && !strncmp(out, "127.", 4)) fail_msg("%s: %s", rows[i].list, out);
    }
    assert_int_equal(address_own(NULL, "::ffff:127.0.0.1", out), 0);
    assert_string_equal(out, "127.0.0.1");
    if (address_own("^lo", "127.0.0.1", out) == 0) assert_false(address_is_loopback(out));
    error_quiet(QUIET_NOT);
}

static int wait_forever(struct rendezvous *r, int rank, int size) {
    (void)size;
    if (rank == 2) kill(getpid(), SIGKILL);
    free(rendezvous_get(r, "never", NULL));
    return 1;
}

static void test_a_killed_rank_is_named(void **state) {
    (void)state;
    struct child c[3];
    int port = free_port();
    for (int i = 0; i < 3; i++) {
        struct rendezvous_options o = options(port, i, 3, 3600);  // nobody waits for it
        c[i] = start(&o, KEY, wait_forever);
    }
    for (int i = 0; i < 3; i++) end(&c[i]);
    is_said(&c[0], "rank 2 on ");
    is_said(&c[1], "has gone");
}

static atomic_bool told;

static void write_why(void *ctx, const char *why) {
    snprintf(ctx, 256, "%s", why);
    atomic_store(&told, true);
}

static int watches(struct rendezvous *r, int rank, int size) {
    char why[256] = "";
    (void)size;
    if (rank == 2) kill(getpid(), SIGKILL);
    rendezvous_on_loss(r, write_why, why);
    for (int i = 0; i < 1000 && !atomic_load(&told); i++) usleep(10000);
    return (fail)("%s", why);
}

static void test_a_watch_is_told(void **state) {
    (void)state;
    struct child c[3];
    int port = free_port();
    for (int i = 0; i < 3; i++) {
        struct rendezvous_options o = options(port, i, 3, 20);
        c[i] = start(&o, NULL, watches);
    }
    for (int i = 0; i < 3; i++) end(&c[i]);
    is_said(&c[0], "rank 2 on ");
    is_said(&c[1], "has gone");
}

static int zero_dies(struct rendezvous *r, int rank, int size) {
    (void)size;
    if (rank == 0) kill(getpid(), SIGKILL);
    free(rendezvous_get(r, "never", NULL));
    return 1;
}

// Both know who is there, and one is stopped or dead before the other goes on to its goodbye.
static int one_is_signalled(struct rendezvous *r, int rank, int which, int sig) {
    int own = getpid(), all[2];
    rendezvous_allgather(r, &own, sizeof own, all);
    if (rank == which) return kill(own, sig);
    char path[40], state = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", all[which]);
    while (!strchr("TZ", state) || !state) {
        FILE *f = fopen(path, "r");
        if (!f) return 0;  // gone
        if (fscanf(f, "%*d (%*[^)]) %c", &state) != 1) state = 0;
        fclose(f);
        usleep(1000);
    }
    return 0;
}
static int zero_dies_at_once(struct rendezvous *r, int rank, int size) {
    (void)size;
    return one_is_signalled(r, rank, 0, SIGKILL);
}
static int one_dies(struct rendezvous *r, int rank, int size) {
    (void)size;
    return one_is_signalled(r, rank, 1, SIGKILL);
}
static int zero_stands_still(struct rendezvous *r, int rank, int size) {
    (void)size;
    return one_is_signalled(r, rank, 0, SIGSTOP);
}

// All went well until the goodbye, which one does not say or hear: the job did not.
static void test_a_goodbye_that_is_missed(void **state) {
    (void)state;
    static const struct {
        rank_body *body;
        int lives;  // rank
        const char *says;
    } rows[] = {{one_dies, 0, "rank 1 on "},
                {zero_dies_at_once, 1, "rank 0 at "},
                {zero_stands_still, 1, "rank 0 at "}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int port = free_port();
        struct child c[2];
        for (int k = 0; k < 2; k++) {
            struct rendezvous_options o = options(port, k, 2, 5);
            c[k] = start(&o, NULL, rows[i].body);
        }
        end(&c[rows[i].lives]);
        kill(c[1 - rows[i].lives].pid, SIGKILL);
        end(&c[1 - rows[i].lives]);
        const struct child *left = &c[rows[i].lives];
        if (!WIFEXITED(left->status) || WEXITSTATUS(left->status) != 1)
            fail_msg("row %zu: %x %s", i, left->status, left->said);
        is_said(&c[rows[i].lives], rows[i].says);
        is_said(&c[rows[i].lives], "before the job had ended");
    }
}

static void test_rank_0_is_killed(void **state) {
    (void)state;
    int port = free_port();
    struct rendezvous_options zero = options(port, 0, 2, 3600), one = options(port, 1, 2, 3600);
    struct child a = start(&zero, NULL, zero_dies), b = start(&one, NULL, zero_dies);
    end(&a);
    end(&b);
    is_said(&b, "rank 0 at 127.0.0.1:");
    is_said(&b, "has gone");
}

static int gives_up(struct rendezvous *r, int rank, int size) {
    (void)size;
    if (rank == 1) {
        rendezvous_abort(r, "rank 1: the disk is full");
        return 0;
    }
    free(rendezvous_get(r, "never", NULL));
    return rendezvous_end_reason(r) ? 1 : 0;
}

static void test_one_gives_up(void **state) {
    (void)state;
    struct child c[3];
    int port = free_port();
    for (int i = 0; i < 3; i++) {
        struct rendezvous_options o = options(port, i, 3, 20);
        c[i] = start(&o, NULL, gives_up);
    }
    for (int i = 0; i < 3; i++) end(&c[i]);
    is_said(&c[0], "rank 1: the disk is full");
    is_said(&c[2], "rank 1: the disk is full");
}

// Rank 0 looks until rank 1 has seen its first look fail.
static int look(struct rendezvous *r, int rank, int size) {
    size_t bytes = 0;
    (void)size;
    char *early = rendezvous_try_get(r, "y", &bytes), *got = NULL;
    if (early) return (fail)("it is there before it is put");
    int round = rank, all[2];
    if (rendezvous_allgather(r, &round, sizeof round, all)) return 1;
    if (rank == 1) return rendezvous_put(r, "y", "now", 3);
    for (int i = 0; i < 500 && !(got = rendezvous_try_get(r, "y", &bytes)); i++) usleep(10000);
    int rc = got && bytes == 3 && !strcmp(got, "now") ? 0 : (fail)("not seen");
    free(got);
    free(rendezvous_try_get(r, "nobody's", &bytes));
    return rc;
}

static void test_looking_does_not_wait(void **state) {
    (void)state;
    int port = free_port();
    struct rendezvous_options zero = options(port, 0, 2, 20), one = options(port, 1, 2, 20);
    struct child a = start(&zero, NULL, look), b = start(&one, NULL, look);
    end(&a);
    end(&b);
    assert_string_equal(a.said, "");
    assert_int_equal(b.status, 0);
}

static int nobody_puts(struct rendezvous *r, int rank, int size) {
    (void)size;
    if (rank) return 0;
    free(rendezvous_get(r, "x", NULL));
    return 1;
}

static void test_a_wait_has_a_deadline(void **state) {
    (void)state;
    int port = free_port();
    struct rendezvous_options zero = options(port, 0, 2, 2), one = options(port, 1, 2, 2);
    struct child a = start(&zero, NULL, nobody_puts), b = start(&one, NULL, nobody_puts);
    end(&a);
    end(&b);
    is_said(&a, "rank 0: waited 2 s at 127.0.0.1:");
    is_said(&a, "for \"x\"");
    assert_int_equal(b.status, 0);
}

static int held[2], met[2];
static int while_held(struct rendezvous *r, int rank, int size) {
    char c;
    int all[2];
    close(held[1]);
    if (write(met[1], "", 1) != 1) return 1;
    ssize_t got = read(held[0], &c, 1);
    return got || rendezvous_allgather(r, &rank, sizeof rank, all) || size != 2;
}

// A stranger's connection with a whole handshake, which no timeout ends. -1: it was not taken.
static int stranger(int port) {
    static const char ready[] = "\4\x1c\5READY\13Socket-Type\0\0\0\6DEALER";
    char greeting[64] = {(char)0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 0, 'N', 'U', 'L', 'L'};
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    a.sin_port = htons((uint16_t)port);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(fd, (struct sockaddr *)&a, sizeof a)) return close(fd), -1;
    bool said = send(fd, greeting, sizeof greeting, MSG_NOSIGNAL) > 0 &&
                send(fd, ready, sizeof ready - 1, MSG_NOSIGNAL) > 0;
    return said ? fd : (close(fd), -1);
}

#define STRANGERS 400
// However many connect, the meeting keeps descriptors for itself, and the ranks that have come.
static void test_strangers_without_end(void **state) {
    (void)state;
    int port = free_port(), fds[STRANGERS], open = STRANGERS;
    struct rendezvous_options zero = options(port, 0, 2, 20), one = options(port, 1, 2, 20);
    char c;
    assert_int_equal(pipe(held) || pipe(met), 0);
    struct child a = start(&zero, NULL, while_held), b = start(&one, NULL, while_held);
    close(held[0]);
    for (int i = 0; i < 2; i++) assert_int_equal(read(met[0], &c, 1), 1);
    close(met[0]), close(met[1]);
    for (int i = 0; i < STRANGERS; i++) fds[i] = stranger(port);
    for (int tries = 0; open > 257 && tries < 1000; tries++, usleep(20000)) {
        char some[256];
        open = 0;
        for (int i = 0; i < STRANGERS; i++) {
            ssize_t got = fds[i] < 0 ? 0 : recv(fds[i], some, sizeof some, MSG_DONTWAIT);
            open += got > 0 || (got < 0 && errno == EAGAIN);
        }
    }
    assert_in_range(open, 1, 257);
    close(held[1]);
    end(&a);
    end(&b);
    assert_true(a.status == 0 && b.status == 0);
    for (int i = 0; i < STRANGERS; i++)
        if (fds[i] >= 0) close(fds[i]);
}

// ---------------------------------------------------------------- roles that come and go
// Member 0 is this process, which is a meeting of its own; workers and servers are children.
static struct rendezvous_options of_star(int port, int member, double silent_s) {
    struct rendezvous_options o = options(port, member, 1, 20);
    o.roles[0] = (struct meet_role){"worker", 2};
    o.roles[1] = (struct meet_role){"server", 1};
    o.member_0 = "the scheduler";
    o.silent_s = silent_s;
    o.beat_s = 0.05;
    o.replace = true;
    return o;
}

enum { WORKER_0 = 1, WORKER_1, SERVER_0 };

static struct rendezvous *open_star(bool anew, double silent_s) {
    struct rendezvous_options o = of_star(0, 0, silent_s);
    o.replace = anew;
    struct rendezvous *r = rendezvous_open(&o);
    assert_non_null(r);
    assert_in_range(rendezvous_port(r), 1, 65535);
    return r;
}

static struct child start_role(struct rendezvous *r, int member, rank_body *body) {
    struct rendezvous_options o = of_star(rendezvous_port(r), member, 20);
    return start(&o, NULL, body);
}

// The next news of the roles is that.
static struct member_news hears(struct rendezvous *r, enum member_news_kind kind, int member,
                                const char *words) {
    struct member_news n;
    struct pollfd on = {.fd = rendezvous_news_fd(r), .events = POLLIN};
    do
        if (!rendezvous_news(r, &n) && (n.member = 0, poll(&on, 1, 60000)) != 1)
            fail_msg("no news of %s", words);
    while (!n.member);
    if (n.kind != kind || n.member != member || (!strstr(n.why, words) && strcmp(n.word, words) != 0))
        fail_msg("not \"%s\" of member %d, but news %d of member %d: \"%s\" %s", words, member, n.kind,
                 n.member, n.word, n.why);
    free(n.data);
    return n;
}

static int says_how_it_ended(struct rendezvous *r) {
    while (!rendezvous_end_kind(r)) usleep(10000);
    return (fail)("end %d: %s", rendezvous_end_kind(r), rendezvous_end_reason(r));
}

static int works(struct rendezvous *r, int member, int size) {
    uint64_t life = rendezvous_incarnation(r);
    (void)size;
    if (rendezvous_send(r, "life", &life, sizeof life) || strcmp(rendezvous_address(r), "127.0.0.1"))
        return 1;
    char *start = rendezvous_get(r, "start", NULL);
    int rc = start && !strcmp(start, "begin") ? 0 : (fail)("it was told %s", start ? start : "nothing");
    free(start);
    if (rendezvous_send(r, "done", &member, sizeof member)) return 1;
    return rc;
}

static int waits(struct rendezvous *r, int member, int size) {
    (void)member, (void)size;
    rendezvous_send(r, "in", NULL, 0);
    return says_how_it_ended(r);
}

static atomic_uint_least64_t no_turns = 1;

static int does_not_turn(struct rendezvous *r, int member, int size) {
    (void)member, (void)size;
    rendezvous_watch_progress(r, &no_turns);
    return says_how_it_ended(r);
}

static void test_roles_come_and_go(void **state) {
    (void)state;
    for (int keyed = 0; keyed < 2; keyed++) {
        if (keyed) setenv("STARRING_JOB_KEY", KEY, 1);
        struct rendezvous *r = open_star(false, 20);
        uint64_t lives[4];
        struct child c[4];
        for (int member = 1; member < 4; member++) {
            c[member] = start_role(r, member, works);
            struct member_news n = hears(r, MEMBER_JOINED, member, "");
            assert_int_equal(n.pid, c[member].pid);
            lives[member] = n.incarnation;
            assert_int_equal(hears(r, MEMBER_SENT, member, "life").incarnation, n.incarnation);
        }
        struct child second = start_role(r, WORKER_1, NULL);
        hears(r, MEMBER_REFUSED, WORKER_1, "worker 1 has joined already: process ");
        end(&second);
        is_said(&second, "each joins once");
        rendezvous_put(r, "start", "begin", 5);
        for (int left = 0; left < 6;) {
            struct member_news n;
            if (!rendezvous_news(r, &n)) {
                usleep(1000);
                continue;
            }
            assert_int_equal(n.incarnation, lives[n.member]);
            assert_true(n.kind == MEMBER_LEFT || !strcmp(n.word, "done"));
            free(n.data);
            left++;
        }
        for (int member = 1; member < 4; member++) {
            end(&c[member]);
            assert_string_equal(c[member].said, "");
            assert_int_equal(c[member].status, 0);
        }
        assert_int_equal(rendezvous_close(&r), 0);
        unsetenv("STARRING_JOB_KEY");
    }
}

static void test_a_meeting_without_a_key(void **state) {
    (void)state;
    setenv("STARRING_JOB_KEY", KEY, 1);
    struct rendezvous_options zero = of_star(0, 0, 20), one;
    zero.no_key = true;
    struct rendezvous *r = rendezvous_open(&zero);
    one = of_star(rendezvous_port(r), WORKER_0, 20);
    struct child shut_out = start(&one, KEY, NULL);
    end(&shut_out);
    is_said(&shut_out, "what listens at 127.0.0.1:");
    one.no_key = true;
    struct child in = start(&one, KEY, NULL);
    end(&in);
    assert_int_equal(in.status, 0);
    assert_int_equal(rendezvous_close(&r), 0);
    unsetenv("STARRING_JOB_KEY");
}

static struct child comes(struct rendezvous *r, int member) {
    struct child c = start_role(r, member, waits);
    hears(r, MEMBER_JOINED, member, "");
    hears(r, MEMBER_SENT, member, "in");
    return c;
}

static void ends(struct child *c, const char *words) {
    kill(c->pid, SIGCONT);
    end(c);
    is_said(c, words);
}

// Stopped, while another one comes; given up; killed; and the end of all.
static void test_roles_that_are_lost(void **state) {
    (void)state;
    struct rendezvous *r = open_star(true, 3600);
    struct child old = comes(r, WORKER_0), new = start_role(r, WORKER_0, (kill(old.pid, SIGSTOP), waits));
    hears(r, MEMBER_LOST, WORKER_0, "replaced");
    uint64_t life = hears(r, MEMBER_JOINED, WORKER_0, "").incarnation;
    hears(r, MEMBER_SENT, WORKER_0, "in");
    ends(&old, "end 4: worker 0 has been started again");
    rendezvous_end_process(r, WORKER_0, life, "worker 0 is too slow");
    ends(&new, "end 4: worker 0 is too slow");
    struct child killed = comes(r, SERVER_0);
    kill(killed.pid, SIGKILL);
    hears(r, MEMBER_LOST, SERVER_0, "has gone: its connection has closed");
    end(&killed);
    struct child last = comes(r, SERVER_0);
    rendezvous_abort(r, "the loss is not finite");
    ends(&last, "end 1: the loss is not finite");
    assert_int_equal(rendezvous_close(&r), -1);
}

// Stopped for too long, or with a thread that does not turn; and a scheduler that leaves.
static void test_roles_that_are_silent(void **state) {
    (void)state;
    struct rendezvous *r = open_star(true, 3);
    struct child stopped = comes(r, WORKER_0);
    kill(stopped.pid, SIGSTOP);
    hears(r, MEMBER_LOST, WORKER_0, "silent");
    ends(&stopped, "end 3: the scheduler at 127.0.0.1:");
    struct rendezvous_options o = of_star(rendezvous_port(r), WORKER_1, 20);
    o.deadline_s = 3;
    struct child c = start(&o, NULL, does_not_turn);
    hears(r, MEMBER_JOINED, WORKER_1, "");
    hears(r, MEMBER_LOST, WORKER_1, "silent");
    kill(c.pid, SIGKILL);
    end(&c);
    struct child last = comes(r, WORKER_0);
    assert_int_equal(rendezvous_close(&r), 0);
    ends(&last, "end 1: the job has ended");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranks_meet_and_talk),     cmocka_unit_test(test_one_never_comes),
        cmocka_unit_test(test_rank_0_never_comes),      cmocka_unit_test(test_another_key),
        cmocka_unit_test(test_the_port_is_in_use),      cmocka_unit_test(test_a_name_without_an_address),
        cmocka_unit_test(test_lists_of_interfaces),     cmocka_unit_test(test_a_killed_rank_is_named),
        cmocka_unit_test(test_a_watch_is_told),         cmocka_unit_test(test_a_goodbye_that_is_missed),
        cmocka_unit_test(test_rank_0_is_killed),        cmocka_unit_test(test_one_gives_up),
        cmocka_unit_test(test_a_wait_has_a_deadline),   cmocka_unit_test(test_looking_does_not_wait),
        cmocka_unit_test(test_strangers_without_end),   cmocka_unit_test(test_roles_come_and_go),
        cmocka_unit_test(test_a_meeting_without_a_key), cmocka_unit_test(test_roles_that_are_lost),
        cmocka_unit_test(test_roles_that_are_silent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
