// Three processes' lanes over connections that the input drives: messages begin, are asked for and arrive, queues are full for a
// while; and a stranger speaks in anybody's name. Arrived messages are those that were sent, no more bytes are in flight
// than the window allows, and a peer that is found at fault is the stranger.
#include "tests/fabric/lanes_net.h"
#include "tests/fuzz/fuzz.h"

#define MOST 4000000

static char from[MOST], to[NET_RANKS][NET_LANES][NET_RANKS][MOST / 8];

struct run {
    struct fuzz_bytes in;
    struct lanes_net net;
    size_t sent[NET_RANKS][NET_LANES][NET_RANKS],
        wants[NET_RANKS][NET_LANES][NET_RANKS];  // of what is under way
    bool spoken;
};

// A message between two, of which one end begins.
static void begin(struct run *x) {
    int a = (int)fuzz_below(&x->in, NET_RANKS),
        b = (a + 1 + (int)fuzz_below(&x->in, NET_RANKS - 1)) % NET_RANKS;
    int lane = (int)fuzz_below(&x->in, NET_LANES);
    bool sends = fuzz_u8(&x->in) & 1;
    size_t *other = sends ? &x->wants[b][lane][a] : &x->sent[a][lane][b],
           *own = sends ? &x->sent[a][lane][b] : &x->wants[b][lane][a];
    size_t bytes = *other ? *other : 1 + fuzz_below(&x->in, MOST / 8 - 1);
    char why[LANES_WHY];
    bool idle = !*own && lanes_done(x->net.of[sends ? a : b], lane, why) == 1;
    if (!idle) return;
    *own = bytes;
    if (sends)
        lanes_send(x->net.of[a], lane, b, 1, from, bytes);
    else
        lanes_receive(x->net.of[b], lane, a, 1, to[b][lane][a], bytes);
}

// Both ends are done: the bytes are those, and the next may begin.
static void look(struct run *x, int a, int lane, int b) {
    char why[LANES_WHY];
    size_t bytes = x->sent[a][lane][b];
    if (!bytes || !x->wants[b][lane][a] || lanes_done(x->net.of[a], lane, why) != 1) return;
    if (lanes_done(x->net.of[b], lane, why) != 1) return;
    FUZZ_CHECK(x->spoken || !memcmp(from, to[b][lane][a], bytes), "%zu bytes from %d to %d are others", bytes,
               a, b);
    x->sent[a][lane][b] = x->wants[b][lane][a] = 0;
}

static void deliver(struct run *x) {
    int a = (int)fuzz_below(&x->in, NET_RANKS), b = (int)fuzz_below(&x->in, NET_RANKS);
    char why[LANES_WHY] = "";
    int rc = net_deliver(&x->net, a, b, why);
    FUZZ_CHECK(rc >= 0 || x->spoken, "rank %d is at fault: %s", a, why);
}

static void speak(struct run *x) {
    struct lane_head h = {.kind = (uint32_t)fuzz_below(&x->in, 4),
                          .lane = (uint32_t)fuzz_below(&x->in, 4),
                          .tag = (uint32_t)fuzz_below(&x->in, 3),
                          .total = (uint64_t)fuzz_number(&x->in),
                          .at = (uint64_t)fuzz_number(&x->in)};
    size_t bytes = fuzz_below(&x->in, 300000);
    char why[LANES_WHY], *data = xcalloc(1, bytes + 1);
    struct lane_piece p = {data, bytes, free, data};
    x->spoken = true;
    lanes_hear(x->net.of[fuzz_below(&x->in, NET_RANKS)], (int)fuzz_number(&x->in), &h, &p, why);
}

FUZZ_TARGET(lanes) {
    struct run *x = xcalloc(1, sizeof *x);
    x->in = (struct fuzz_bytes){data, size};
    net_open(&x->net);
    for (size_t i = 0; i < MOST; i += 509) from[i] = (char)(i >> 9);
    while (x->in.left) {
        switch (fuzz_u8(&x->in) % 8) {
            case 0:
                speak(x);
                break;
            case 1:
                x->net.full = !x->net.full;
                break;
            case 2:
            case 3:
                begin(x);
                break;
            case 4:
                lanes_push(x->net.of[fuzz_below(&x->in, NET_RANKS)]);
                break;
            default:
                deliver(x);
        }
        for (int a = 0; a < NET_RANKS; a++)
            for (int lane = 0; lane < NET_LANES; lane++)
                for (int b = 0; b < NET_RANKS; b++) {
                    look(x, a, lane, b);
                    FUZZ_CHECK(x->net.queues[a][b].bytes <= NET_LANES * LANES_WINDOW,
                               "rank %d sends beyond its window", a);
                }
    }
    net_close(&x->net);
    free(x);
}
