// Strangers at the ports of a job: connections that say nothing, messages that never end, messages in a member's name.
// The gatekeeper decides who is let in before a part of a message is read.
#include <arpa/inet.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <zmq.h>

#include "ps/net/net.h"
#include "tests/ps/test_ps_star.h"

#define FLOOD_BYTES ((size_t)96 << 20)
#define MAY_GROW    ((size_t)24 << 20)
#define PART_BYTES  65536
#define GREETING    64
#define HOLDS       150
#define FEW_FILES   128
#define HANDSHAKE_S 3.0    // of shared/fabric/curve.c
#define LATE_S      300.0  // on a busy machine

// ---------------------------------------------------------------- a stranger of bare sockets
static int connect_to(const char *address) {
    struct sockaddr_in to = {.sin_family = AF_INET};
    char host[64];
    int port = 0, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (sscanf(address, "tcp://%63[0-9.]:%d", host, &port) != 2 ||
        inet_pton(AF_INET, host, &to.sin_addr) != 1)
        return -1;
    to.sin_port = htons((uint16_t)port);
    return connect(fd, (struct sockaddr *)&to, sizeof to) == 0 ? fd : -1;
}

static bool put(int fd, const void *bytes, size_t count) {
    const char *at = bytes;
    while (count > 0) {
        ssize_t n = send(fd, at, count, MSG_NOSIGNAL);
        if (n <= 0) return false;
        at += n;
        count -= (size_t)n;
    }
    return true;
}

// ZMTP 3.0's greeting, as a peer with that mechanism.
static bool greet(int fd, const char *mechanism) {
    unsigned char g[GREETING] = {0xff, [9] = 0x7f, [10] = 3, [11] = 0};
    memcpy(g + 12, mechanism, strlen(mechanism));
    return put(fd, g, sizeof g);
}

// READY of NULL behind the other side's greeting, and behind its READY parts of a message that never ends. Bytes that
// were taken.
static size_t flood(int fd) {
    static const char ready[] =
        "\x04\x29\x05READY\x0bSocket-Type\x00\x00\x00\x06"
        "DEALER\x08Identity\x00\x00\x00\x00";
    static unsigned char part[9 + PART_BYTES] = {3, 0, 0, 0, 0, 0, 1, 0, 0};  // MORE and LONG, 65536 bytes
    char theirs[GREETING];
    size_t sent = 0;
    if (recv(fd, theirs, sizeof theirs, MSG_WAITALL) != sizeof theirs || !put(fd, ready, sizeof ready - 1) ||
        recv(fd, theirs, sizeof theirs, 0) <= 0)
        return 0;
    while (sent < FLOOD_BYTES && put(fd, part, sizeof part)) sent += PART_BYTES;
    return sent;
}

struct door {
    struct wire_count wire;
    struct net *net;
    struct net_socket *socket;
    char address[FABRIC_ADDRESS_MAX];
};

static void door_open(struct door *d, const struct job_key *key, const char *token) {
    memset(d, 0, sizeof *d);
    d->net = net_create(&(struct net_options){.wire = &d->wire,
                                              .fabric.max_payload_bytes = 1 << 20,
                                              .fabric.queue_messages = 1000,
                                              .fabric.key = key,
                                              .fabric.token = token});
    d->socket = net_router(d->net, "tcp://127.0.0.1:*", d->address);
    assert_non_null(d->socket);
}

static void door_close(struct door *d) { net_destroy(&d->net, 0); }

// Returns the messages received within so many seconds; stops at the first message.
static bool heard(struct door *d, double seconds, struct net_message *m) {
    for (double end = now_seconds() + seconds; now_seconds() < end;) {
        struct net_poll_item item = {.socket = d->socket};
        assert_int_equal(net_poll(&item, 1, 10), 0);
        if (item.ready && net_recv(d->socket, m) == 1) return true;
    }
    return false;
}

// In a process of its own, whose memory is not ours.
// The door is polled meanwhile, and nothing is heard.
static size_t flood_from_elsewhere(struct door *d, const char *mechanism) {
    int ends[2];
    size_t sent = 0;
    struct net_message m;
    assert_int_equal(pipe(ends), 0);
    pid_t pid = fork();
    if (pid == 0) {
        int fd = connect_to(d->address);
        struct timeval patience = {.tv_sec = 5};
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
        if (fd >= 0 && greet(fd, mechanism)) sent = flood(fd);
        ssize_t n = write(ends[1], &sent, sizeof sent);
        _exit(n == sizeof sent ? 0 : 1);
    }
    while (waitpid(pid, NULL, WNOHANG) == 0) assert_false(heard(d, 0.02, &m));
    assert_int_equal(read(ends[0], &sent, sizeof sent), sizeof sent);
    close(ends[0]);
    close(ends[1]);
    return sent;
}

static size_t resident(void) {
    FILE *f = fopen("/proc/self/statm", "re");
    size_t pages = 0;
    assert_int_equal(fscanf(f, "%*u %zu", &pages), 1);
    fclose(f);
    return pages * (size_t)sysconf(_SC_PAGESIZE);
}

// A message that never ends grew a scheduler and a server by what was sent, without a key.
static void test_flood(void **state) {
    (void)state;
    static const char *const mechanisms[] = {"NULL", "PLAIN", "CURVE", "NONSENSE"};
    for (int plane = 0; plane < 2; plane++)
        for (int i = 0; i < 4; i++) {
            struct door d;
            struct net_message m;
            door_open(&d, key_of_test(), plane ? "a token" : NULL);
            size_t before = resident();
            flood_from_elsewhere(&d, mechanisms[i]);
            assert_false(heard(&d, 0.2, &m));
            if (resident() > before + MAY_GROW)
                fail_msg("%s: grew by %zu MiB", mechanisms[i], (resident() - before) >> 20);
            door_close(&d);
        }
    // Where everybody is let in the same stranger is let in: it is the mode that keeps him out.
    struct door d;
    door_open(&d, NULL, NULL);
    size_t before = resident();
    size_t sent = flood_from_elsewhere(&d, "NULL");
    if (sent < FLOOD_BYTES) fail_msg("a message in parts was taken for %zu bytes alone", sent);
    usleep(200000);
    assert_true(resident() > before + MAY_GROW);
    door_close(&d);
}

// ---------------------------------------------------------------- who is heard
// Says so as that role and rank; whether it is heard.
static bool is_heard(struct door *d, const struct job_key *who, const struct net_peer *to, enum ps_role role,
                     double seconds) {
    struct wire_count wire = {0};
    struct net_message m;
    struct net *n =
        net_create(&(struct net_options){.wire = &wire, .fabric.queue_messages = 10, .fabric.key = who});
    struct net_socket *s = net_dealer(n, to);
    struct ps_message say = {
        .header = {.kind = WIRE_JOIN, .role = role, .rank = 0, .job = 7, .incarnation = 9}};
    assert_non_null(s);
    net_send(s, NULL, &say, false);
    bool yes = heard(d, seconds, &m);
    if (yes) ps_frame_release(m.frame);
    net_destroy(&n, 0);
    return yes;
}

// A peer that has the job's key is heard as any rank; one with another key, none, or a pair of its own is not. Control, and the data
// of a server that has no token.
static void test_key(void **state) {
    (void)state;
    const struct job_key other = {{9}};
    struct door d;
    door_open(&d, key_of_test(), NULL);
    const struct net_peer to = {d.address, NULL};
    assert_true(is_heard(&d, key_of_test(), &to, PS_WORKER, 10));
    assert_true(is_heard(&d, key_of_test(), &to, PS_SHARD, 10));
    assert_false(is_heard(&d, key_of_test(), &to, PS_SCHEDULER, 0.5));
    assert_false(is_heard(&d, &other, &to, PS_WORKER, 0.5));
    assert_false(is_heard(&d, NULL, &to, PS_WORKER, 0.5));
    door_close(&d);
}

// Whether a client that shows this pair gets through a handshake with whoever it takes to listen there.
static bool is_let_in(const struct door *d, const uint8_t *server, const uint8_t *own_public,
                      const uint8_t *own_secret) {
    void *context = zmq_ctx_new(), *s = zmq_socket(context, ZMQ_DEALER),
         *events = zmq_socket(context, ZMQ_PAIR);
    int linger_ms = 0, patience_ms = 700;
    unsigned char event[6], address[256];
    zmq_setsockopt(s, ZMQ_LINGER, &linger_ms, sizeof linger_ms);
    zmq_setsockopt(events, ZMQ_RCVTIMEO, &patience_ms, sizeof patience_ms);
    zmq_setsockopt(s, ZMQ_CURVE_SERVERKEY, server, JOB_PAIR_BYTES);
    zmq_setsockopt(s, ZMQ_CURVE_PUBLICKEY, own_public, JOB_PAIR_BYTES);
    zmq_setsockopt(s, ZMQ_CURVE_SECRETKEY, own_secret, JOB_PAIR_BYTES);
    zmq_socket_monitor(s, "inproc://events", ZMQ_EVENT_HANDSHAKE_SUCCEEDED);
    zmq_connect(events, "inproc://events");
    assert_int_equal(zmq_connect(s, d->address), 0);
    bool in = zmq_recv(events, event, sizeof event, 0) == sizeof event;
    if (in) zmq_recv(events, address, sizeof address, 0);
    zmq_socket_monitor(s, NULL, 0);
    zmq_close(events);
    zmq_close(s);
    zmq_ctx_term(context);
    return in;
}

// Neither half of the proof is enough: who to expect there, and who to be. A listener's own pair, reflected, is no member's.
static void test_both_pairs_are_asked_for(void **state) {
    (void)state;
    struct job_pairs p, other;
    struct door d;
    job_pairs_of(key_of_test(), &p);
    job_pairs_of(&(struct job_key){{9}}, &other);
    door_open(&d, key_of_test(), NULL);
    assert_true(is_let_in(&d, p.listen_public, p.connect_public, p.connect_secret));
    assert_false(is_let_in(&d, p.listen_public, other.connect_public, other.connect_secret));
    assert_false(is_let_in(&d, other.listen_public, p.connect_public, p.connect_secret));
    assert_false(is_let_in(&d, p.listen_public, p.listen_public, p.listen_secret));
    assert_false(is_let_in(&d, p.connect_public, p.connect_public, p.connect_secret));
    door_close(&d);
}

// A server that has a token asks for that alone, of data.
static void test_token(void **state) {
    (void)state;
    struct door d;
    door_open(&d, key_of_test(), "the right token");
    struct net_peer to = {d.address, "the right token"};
    assert_true(is_heard(&d, key_of_test(), &to, PS_WORKER, 10));
    static const char *const wrong[] = {"the right toke", "the right tokem", "the right token ", "x", ""};
    for (int i = 0; i < 5; i++) {
        to.token = wrong[i];
        assert_false(is_heard(&d, key_of_test(), &to, PS_WORKER, 0.5));
    }
    assert_false(is_heard(&d, NULL, &to, PS_WORKER, 0.5));
    door_close(&d);
}

// ---------------------------------------------------------------- connections that are held
// Opens connections to the address until it is told to end, says nothing, or the greeting alone; and counts those that
// the other side has ended.
static pid_t hold(const char *address) {
    pid_t pid = fork();
    if (pid != 0) return pid;
    struct rlimit l = {4096, 4096};
    static int fd[HOLDS];
    setrlimit(RLIMIT_NOFILE, &l);
    for (;;) {
        for (int i = 0; i < HOLDS; i++) {
            char byte;
            bool ended = fd[i] > 0 && recv(fd[i], &byte, 1, MSG_DONTWAIT) == 0;
            if (fd[i] > 0 && !ended) continue;
            if (fd[i] > 0) close(fd[i]);
            fd[i] = connect_to(address);
            if (fd[i] > 0 && i % 2) greet(fd[i], i % 4 == 1 ? "CURVE" : "NULL");
        }
        usleep(1000);
    }
}

// The scheduler's port is held from before anybody else connects to the end, by more connections than the process may
// open before it raises its limit, and fewer than it spares them: here all roles are one process, and share what is left.
static void test_held_connections(void **state) {
    (void)state;
    struct rlimit was, few;
    getrlimit(RLIMIT_NOFILE, &was);
    few = was;
    few.rlim_cur = FEW_FILES;
    setrlimit(RLIMIT_NOFILE, &few);
    struct toy_case t = base_case();
    struct job *j = job_create(&t);
    j->c.ps.deadline_ms = 20000;
    j->attack = hold;
    job_run(j, NULL, t.workers);
    kill(j->stranger, SIGKILL);
    waitpid(j->stranger, NULL, 0);
    check_all_done(j);
    job_destroy(j);
    setrlimit(RLIMIT_NOFILE, &was);
}

// A handshake has a deadline.
static void test_silent_connections_end(void **state) {
    (void)state;
    struct door d;
    char byte;
    door_open(&d, key_of_test(), NULL);
    double begin = now_seconds();
    int silent = connect_to(d.address), greets = connect_to(d.address);
    struct timeval patience = {.tv_sec = (time_t)LATE_S};
    setsockopt(silent, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    setsockopt(greets, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    assert_true(greet(greets, "CURVE"));
    while (recv(silent, &byte, 1, 0) > 0) continue;
    while (recv(greets, &byte, 1, 0) > 0) continue;
    assert_true(now_seconds() - begin < LATE_S && now_seconds() - begin > 0.5 * HANDSHAKE_S);
    close(silent);
    close(greets);
    door_close(&d);
}

// ---------------------------------------------------------------- frames before a handshake
#define FRAME_BYTES    (1 << 20)
#define FRAMES_AT_ONCE 64

// For each connection libzmq keeps one frame before it has asked for a key. A server of 1 MiB partitions kept 4 MiB of
// each:
// 1.1 GiB were seen.
static void test_frames_before_a_handshake(void **state) {
    (void)state;
    static unsigned char frame[9 + FRAME_BYTES - 1] = {6, 0, 0, 0, 0, 0, 0x10, 0, 0};  // LONG and COMMAND
    struct door d = {.net = NULL};
    struct net_message m;
    int fd[FRAMES_AT_ONCE];
    d.net = net_create(&(struct net_options){.wire = &d.wire,
                                             .fabric.max_payload_bytes = 4 << 20,
                                             .fabric.max_heard_bytes = 1 << 16,
                                             .fabric.queue_messages = 1000,
                                             .fabric.key = key_of_test(),
                                             .fabric.token = "a token"});
    d.socket = net_router(d.net, "tcp://127.0.0.1:*", d.address);
    assert_non_null(d.socket);
    memset(frame + 9, 0xa5, sizeof frame - 9);
    size_t before = resident();
    for (int i = 0; i < FRAMES_AT_ONCE; i++) {
        struct timeval patience = {.tv_sec = 1};
        fd[i] = connect_to(d.address);
        assert_true(fd[i] > 0);
        setsockopt(fd[i], SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
        if (greet(fd[i], "PLAIN")) put(fd[i], frame, sizeof frame);
    }
    assert_false(heard(&d, 0.2, &m));
    if (resident() > before + MAY_GROW) fail_msg("grew by %zu MiB", (resident() - before) >> 20);
    for (int i = 0; i < FRAMES_AT_ONCE; i++) close(fd[i]);
    door_close(&d);
}

// ---------------------------------------------------------------- the port of one who has died
// Somebody else listens where `address` was: a descriptor.
static int take_port(const char *address) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), one = 1, rc;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    at.sin_port = htons((uint16_t)atoi(strrchr(address, ':') + 1));
    for (double end = now_seconds() + 60;
         (rc = bind(fd, (struct sockaddr *)&at, sizeof at)) && now_seconds() < end;)
        usleep(10000);
    assert_int_equal(rc, 0);
    assert_int_equal(listen(fd, 16), 0);
    return fd;
}

// Whether somebody comes within so many seconds; he is sent away. The dealer goes on saying what it has to say.
static bool somebody_comes(int listener, struct net_socket *dealer, double seconds) {
    const struct ps_message say = {
        .header = {.kind = WIRE_PULL, .role = PS_WORKER, .job = 7, .incarnation = 9}};
    for (double end = now_seconds() + seconds; now_seconds() < end; usleep(10000)) {
        int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        net_send(dealer, NULL, &say, false);
        if (fd < 0) continue;
        close(fd);
        return true;
    }
    return false;
}

// The token says who asks, and nothing says who answers: a client that has been answered shows its token to nobody else.
// Before, whoever took a dead server's port was sent the workers' gradients. One that has not been answered asks again.
static void test_port_of_a_dead_server(void **state) {
    (void)state;
    struct wire_count wire = {0};
    struct net_message m;
    struct door d;
    door_open(&d, key_of_test(), "the right token");
    struct net *n = net_create(
        &(struct net_options){.wire = &wire, .fabric.queue_messages = 10, .fabric.key = key_of_test()});
    char address[FABRIC_ADDRESS_MAX];
    memcpy(address, d.address, sizeof address);
    const struct net_peer to = {address, "the right token"};
    struct net_socket *s = net_dealer(n, &to);
    const struct ps_message say = {
        .header = {.kind = WIRE_PULL, .role = PS_WORKER, .job = 7, .incarnation = 9}};
    struct ps_message answer = say;
    answer.header.role = PS_SHARD;
    assert_non_null(s);
    assert_true(net_send(s, NULL, &say, false));
    assert_true(heard(&d, 60, &m));
    assert_true(net_send(d.socket, &m.from, &answer, false));
    struct net_poll_item item = {.socket = s};
    assert_int_equal(net_poll(&item, 1, 60000), 0);
    assert_int_equal(net_recv(s, &m), 1);
    struct net *n2 = net_create(
        &(struct net_options){.wire = &wire, .fabric.queue_messages = 10, .fabric.key = key_of_test()});
    struct net_socket *unheard = net_dealer(n2, &to);
    assert_non_null(unheard);
    assert_true(net_send(unheard, NULL, &say, false));
    assert_true(heard(&d, 60, &m));
    door_close(&d);
    int listener = take_port(address);
    assert_true(somebody_comes(listener, unheard, 120));
    net_destroy(&n2, 0);
    for (int fd; (fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC)) >= 0;) close(fd);
    assert_false(somebody_comes(listener, s, 1));
    close(listener);
    net_destroy(&n, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_flood),
        cmocka_unit_test(test_key),
        cmocka_unit_test(test_both_pairs_are_asked_for),
        cmocka_unit_test(test_token),
        cmocka_unit_test(test_held_connections),
        cmocka_unit_test(test_silent_connections_end),
        cmocka_unit_test(test_frames_before_a_handshake),
        cmocka_unit_test(test_port_of_a_dead_server),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
