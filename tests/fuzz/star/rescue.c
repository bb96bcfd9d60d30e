// A server's parts of the checkpoint that ends an epoch (ps/server/rescue_part.h): RESCUEs of any number, for its own keys
// alone or for its dead neighbour's as well; keys that can be brought to the step or cannot; a part that the neighbour has
// left itself. Each part that was asked for is left whole or refused with a reason, no other one, and none is written twice.
#include <sys/stat.h>
#include <unistd.h>

#include "ps/server/rescue_part.h"
#include "shared/core/error.h"
#include "shared/hf/safetensors.h"
#include "shared/state/checkpoint.h"
#include "tests/fuzz/star/star_case.h"
#include "tests/ps/test_ps_sim.h"

#define STEPS 7
#define LIFE  9001

struct life {
    struct sim *s;                 // lends config, layout and map
    struct server_buffers *of[2];  // the own keys, the replica's
    struct rescue_part_options o;
    struct rescue_part *part;
    char *dir;
    bool broken[2];  // cannot be brought to the step
    bool asked[2];
    _Atomic int settled[2];
};

static int settle(void *ctx, bool replica, int64_t steps, const struct update_scalars *last,
                  char why[WIRE_TEXT_MAX]) {
    struct life *x = ctx;
    x->settled[replica]++;
    FUZZ_CHECK(steps == STEPS && last->grad_scale == 2, "step %lld", (long long)steps);
    if (!x->broken[replica]) return 0;
    snprintf(why, WIRE_TEXT_MAX, "it is broken");
    return -1;
}

static struct server_buffers *buffers(const struct life *x, float first) {
    const struct shard_map *map = x->s->map;
    struct server_buffers *b = xcalloc((unsigned long)map->count, sizeof *b);
    for (int key = 0; key < map->count; key++) {
        int64_t n = map->parts[key].end - map->parts[key].begin;
        for (int kind = 0; kind < 3; kind++) {
            float *v = xcalloc((unsigned long)n, sizeof *v);
            for (int64_t i = 0; i < n; i++) v[i] = first + (float)(key + kind) + (float)i / 1024;
            *(kind ? &b[key].state[kind - 1] : &b[key].master) = v;
        }
    }
    return b;
}

static void free_buffers(const struct life *x, struct server_buffers *b) {
    for (int key = 0; key < x->s->map->count; key++) {
        free(b[key].master);
        for (int i = 0; i < 2; i++) free(b[key].state[i]);
    }
    free(b);
}

static bool is_there(const struct life *x, int server) {
    char who[32];
    snprintf(who, sizeof who, "server-%d", server);
    return part_file_is_there(x->dir, who);
}

static void forget(const struct life *x) {
    for (int server = 0; server < 2; server++)
        for (int i = 0; i < 3; i++) {
            char *path = xasprintf("%s/server-%d.%s", x->dir, server,
                                   i == 0   ? "json"
                                   : i == 1 ? "safetensors"
                                            : "failed");
            unlink(path);
            free(path);
        }
}

static const float *element(const struct life *x, const struct server_buffers *b, int u, int64_t at) {
    const struct shard_map *map = x->s->map;
    int key = map->first[u];
    while (key < map->first[u + 1] && map->parts[key].end <= at) key++;
    FUZZ_CHECK(key < map->first[u + 1], "element %lld of unit %d is no key's", (long long)at, u);
    return b[key].master + (at - map->parts[key].begin);
}

// The file's masters are the buffers': of all pieces the first element and the last.
static void check_part(const struct life *x, int server, const struct server_buffers *b) {
    char *path = xasprintf("%s/server-%d.safetensors", x->dir, server);
    struct st_file *f = st_open(path);
    int found = 0;
    FUZZ_CHECK(f, "%s", error_last());
    for (int i = 0; i < st_count(f); i++) {
        const struct st_tensor *piece = st_at(f, i);
        int u, t;
        long long at;
        if (sscanf(piece->name, "master/u%d.%d@%lld", &u, &t, &at) != 3) continue;
        const float *held = piece->data;
        int64_t first = x->s->l->units[u].tensors[t].offset + at, last = piece->numel - 1;
        FUZZ_CHECK(held[0] == *element(x, b, u, first) && held[last] == *element(x, b, u, first + last),
                   "%s has other numbers in %s", path, piece->name);
        found++;
    }
    FUZZ_CHECK(found > 0, "%s is empty", path);
    st_close(&f);
    free(path);
}

// By the neighbour, before it died.
static void leave_before(const struct life *x) {
    const struct state_file_options so = {.config = x->o.config,
                                          .layout = x->o.layout,
                                          .map = x->o.map,
                                          .rank = 1,
                                          .run_dir = fuzz_dir(),
                                          .step = STEPS,
                                          .life = LIFE};
    char *error = NULL;
    struct state_file *f = state_file_create(&so, &error);
    int count, *keys = state_file_keys(x->o.map, 1, &count);
    for (int i = 0; f && i < count; i++)
        state_file_write(f, &(struct key_counts){.key = keys[i]}, &x->of[0][keys[i]], NULL);
    FUZZ_CHECK(f && state_file_finish(&f, &error) == 0, "%s", error);
    free(keys);
}

static void ask(struct life *x, uint8_t what) {
    const struct wire_header h = {.kind = WIRE_RESCUE,
                                  .step = STEPS,
                                  .seq = LIFE,
                                  .grad_scale = 2,
                                  .count = what & 3 ? 1 : 0,
                                  .values = {what & 2 ? 1 : 0}};
    x->asked[0] = true;
    x->asked[1] = x->asked[1] || what & 2;
    rescue_part_asked(&x->part, &x->o, &h);
}

static void await(struct life *x) {
    for (int ms = 0;; ms++) {
        struct wire_header answer;
        bool failed = rescue_part_failed(x->part, &answer);
        FUZZ_CHECK(!failed || answer.seq == LIFE, "the answer is to another epoch");
        bool own = is_there(x, 0) || (x->broken[0] && failed),
             replica = is_there(x, 1) || (x->broken[1] && failed && x->settled[1]);
        if (own && (replica || !x->asked[1])) return;
        FUZZ_CHECK(ms < 20000, "a part is neither left nor refused");
        usleep(200);
    }
}

static void check(const struct life *x, bool left_before) {
    for (int i = 0; i < 2; i++) {
        bool ours = i == 0 || !left_before;
        FUZZ_CHECK(x->settled[i] <= 1, "part %d is made %d times", i, x->settled[i]);
        FUZZ_CHECK(
            ours ? !is_there(x, i) || (x->asked[i] && !x->broken[i]) : is_there(x, i) && !x->settled[i],
            "server %d's part is there", i);
        if (is_there(x, i)) check_part(x, i, x->of[i == 1 && !left_before]);
    }
}

static void create(struct life *x) {
    for (int u = 0; u < x->s->l->count; u++)  // of the toy's units all tensors have one name
        for (int i = 0; i < x->s->l->units[u].count; i++)
            snprintf(x->s->l->units[u].tensors[i].name, sizeof x->s->l->units[u].tensors[i].name, "u%d.%d", u,
                     i);
    x->dir = checkpoint_partial(fuzz_dir(), CHECKPOINT_ALL, STEPS, LIFE);
    forget(x);
    x->of[0] = buffers(x, 0);
    x->of[1] = buffers(x, 0.5f);
    x->o = (struct rescue_part_options){.config = &x->s->c,
                                        .layout = x->s->l,
                                        .map = x->s->map,
                                        .run_dir = fuzz_dir(),
                                        .own = x->of[0],
                                        .replica = x->of[1],
                                        .ctx = x,
                                        .settle = settle};
}

FUZZ_TARGET(rescue) {
    struct fuzz_bytes in = {data, size};
    struct toy_case t = star_case(&in);
    uint8_t how = fuzz_u8(&in);
    t.consistency = "sync";
    t.servers = 2;
    t.share = SHARE_NOTHING;
    struct life x = {.s = sim_create(&t), .broken = {how & 1, how & 2}};
    create(&x);
    if (how & 4) leave_before(&x);
    for (int n = 0; in.left && n < 8; n++) {
        uint8_t what = fuzz_u8(&in);
        ask(&x, what);
        if (what & 4) await(&x);
    }
    rescue_part_destroy(&x.part);
    check(&x, how & 4);
    free_buffers(&x, x.of[0]);
    free_buffers(&x, x.of[1]);
    sim_destroy(x.s);
    free(x.dir);
}
