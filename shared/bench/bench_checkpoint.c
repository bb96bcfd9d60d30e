// `starring bench checkpoint`: the command, its measurements and their figures.
#include "shared/bench/bench_checkpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "shared/core/disk.h"
#include "shared/core/error.h"
#include "shared/core/json.h"
#include "shared/core/text.h"
#include "shared/hf/presets.h"
#include "shared/launch/local.h"
#include "shared/memory/memory_limits.h"
#include "shared/model/model.h"
#include "shared/state/checkpoint_read.h"

#define TARGET      0.8  // of the disk's own rate, that writing is to reach
#define LIFE        0x62656e6368ULL
#define PLAIN_BYTES ((int64_t)8 << 20)  // of a plain write and read
#define HASH_BYTES  ((size_t)1 << 20)   // at once: what a part file hashes at once
#define BLOCK_BYTES 4096                // O_DIRECT: lengths and addresses are multiples of it
#define NAME_BYTES  32

static const struct cli_option options[] = {
    {"model", "model", "M", "preset, Hugging Face config.json or directory (gpt2-124m)", 0},
    {"dir", NULL, "DIR", "where to write: a directory of the file system that is meant (.)", 0},
    {"files", NULL, "N", "participants, each with a file and a thread of its own (1)", 0},
    {"rounds", NULL, "N", "rounds, after one that is not counted; medians count (5)", 0},
    {"set", CLI_SET, "KEY=VALUE", "any configuration key; optimizer.type decides how much there is to write",
     0},
    {"json", NULL, NULL, "print one JSON document instead of the table", 0},
};

static const struct cli_command command = {
    .name = "bench checkpoint",
    .usage = "[--model M] [--dir DIR] [--files N] [OPTIONS]",
    .summary =
        "Writes a model's training state (masters and optimizer states, fp32 in every run) as a run writes its\n"
        "checkpoints, to the rename, in turn with the same bytes through plain large writes and fsync, and through\n"
        "O_DIRECT: the share of the faster one's rate, which is the disk's own. Then reads it back, every byte\n"
        "verified, beside plain reads. Its files lie in a directory of its own below --dir and is removed.",
    .examples =
        "  starring bench checkpoint --model demo\n"
        "  starring bench checkpoint --model gpt2-124m --dir /scratch --rounds 3\n"
        "  starring bench checkpoint --model gpt2-124m --files 4 --json\n",
    CLI_OPTIONS(options),
};

static void keep(struct checkpoint_bench *b, enum checkpoint_series s, double value) {
    if (b->round) bench_series_add(&b->series[s], value);
}

// Logs what a function of shared/state says, and frees it.
static int say(char *error) {
    int rc = fail("%s", error ? error : "a checkpoint could not be written, for a reason that nobody told");
    free(error);
    return rc;
}

// ---------------------------------------------------------------- participants
// One participant, on a thread of its own.
struct part {
    struct checkpoint_bench *b;
    int rank;
    char name[NAME_BYTES];
    struct state_range *ranges;
    int count;
    double handed_over_s, finished_s;  // moments
    double user, system;
    char *error;
    bool unable;  // the file system has no O_DIRECT
    int rc;
};

static int kinds(const struct checkpoint_bench *b) { return STATE_OPTIMIZER + b->states; }

// Where the elements of a unit's kind begin.
static float *state_of(const struct checkpoint_bench *b, int unit, int kind) {
    float *at = b->state;
    for (int u = 0; u < unit; u++) at += b->layout->units[u].n_pad * kinds(b);
    return at + b->layout->units[unit].n_pad * kind;
}

static double seconds_of(struct timeval t) { return (double)t.tv_sec + 1e-6 * (double)t.tv_usec; }

static void end_part(struct part *p) {
    struct rusage used;
    getrusage(RUSAGE_THREAD, &used);
    p->user = seconds_of(used.ru_utime);
    p->system = seconds_of(used.ru_stime);
    p->finished_s = now_seconds();
}

static int write_part(struct part *p) {
    struct checkpoint_bench *b = p->b;
    char *dir = checkpoint_partial(b->dir, CHECKPOINT_ALL, b->step, LIFE);
    struct part_file *f = part_file_create(
        &(struct part_options){
            .dir = dir, .participant = p->name, .layout = b->layout, .ranges = p->ranges, .count = p->count},
        &p->error);
    free(dir);
    if (!f) return -1;
    b->file_bytes[p->rank] = part_file_bytes(f);
    for (int i = 0; i < p->count; i++) {
        const struct state_range *r = &p->ranges[i];
        if (part_file_write(f, i, r->begin, r->end, r->data)) break;  // part_file_finish tells why
    }
    p->handed_over_s = now_seconds();
    return part_file_finish(&f, &p->error);
}

static void *write_thread(void *arg) {
    struct part *p = arg;
    p->rc = write_part(p);
    end_part(p);
    return NULL;
}

static char *plain_path(const struct checkpoint_bench *b, int rank) {
    return xasprintf("%s/plain-%d", b->dir, rank);
}

// As many bytes as the participant's file has, from its share of the buffer on, around its end. block: what all lengths
// and addresses are multiples of; what is left at the end is not written.
static int write_all(const struct part *p, int64_t block, int fd, const char *path, char **error) {
    const struct checkpoint_bench *b = p->b;
    const char *state = (const char *)b->state;
    int64_t size = b->elements * (int64_t)sizeof *b->state / block * block;
    int64_t at = size / b->files * p->rank / block * block;
    for (int64_t left = b->file_bytes[p->rank] / block * block; left > 0;) {
        int64_t n = left < PLAIN_BYTES ? left : PLAIN_BYTES;
        if (n > size - at) n = size - at;
        if (disk_write(fd, path, state + at, (size_t)n, error)) return -1;
        at = (at + n) % size;
        left -= n;
    }
    return 0;
}

static void *write_plain(struct part *p, bool direct) {
    char *path = plain_path(p->b, p->rank);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | (direct ? O_DIRECT : 0), 0666);
    p->unable = direct && fd < 0 && errno == EINVAL;
    if (fd >= 0 && direct) fallocate(fd, 0, 0, p->b->file_bytes[p->rank]);  // or not: only faster
    p->rc = fd < 0 ? -1 : write_all(p, direct ? BLOCK_BYTES : 1, fd, path, &p->error);
    if (p->rc == 0) p->rc = fsync(fd);
    if (fd >= 0 && close(fd)) p->rc = -1;
    if (p->unable) p->rc = 0;
    if (p->rc) disk_error(&p->error, "%s: cannot write: %s", path, strerror(errno));
    free(path);
    end_part(p);
    return NULL;
}

static void *plain_thread(void *arg) { return write_plain(arg, false); }
static void *direct_thread(void *arg) { return write_plain(arg, true); }

static void *hash_thread(void *arg) {
    struct part *p = arg;
    const char *state = (const char *)p->b->state;
    size_t size = (size_t)p->b->elements * sizeof *p->b->state, share = size / (size_t)p->b->files;
    XXH64_state_t *h = XXH64_createState();
    XXH64_reset(h, 0);
    for (size_t at = 0; at < share; at += HASH_BYTES)
        XXH64_update(h, state + share * (size_t)p->rank + at,
                     share - at < HASH_BYTES ? share - at : HASH_BYTES);
    // The digest is looked at, so that it is computed.
    if (XXH64_digest(h) == 0) p->user = 0;
    XXH64_freeState(h);
    end_part(p);
    return NULL;
}

// Every participant at once; the seconds until the last one has ended. parts: b->files of them, freed with free_parts.
static int all_at_once(struct checkpoint_bench *b, struct part *parts, void *(*run)(void *)) {
    pthread_t threads[CHECKPOINT_FILES_MAX];
    int rc = 0, started = 0;
    for (int i = 0; i < b->files; i++) {
        parts[i] = (struct part){.b = b, .rank = i};
        snprintf(parts[i].name, NAME_BYTES, "worker-%d", i);
        const struct layout *l = b->layout;
        struct part *p = &parts[i];
        p->ranges = xcalloc((unsigned long)(l->count * kinds(b)), sizeof *p->ranges);
        for (int u = 0; u < l->count; u++)
            for (int kind = 0; kind < kinds(b); kind++) {
                int64_t n = l->units[u].n_pad, begin = n * i / b->files;
                p->ranges[p->count++] = (struct state_range){.unit = u,
                                                             .kind = kind,
                                                             .begin = begin,
                                                             .end = n * (i + 1) / b->files,
                                                             .data = state_of(b, u, kind) + begin};
            }
    }
    while (started < b->files && !pthread_create(&threads[started], NULL, run, &parts[started])) started++;
    for (int i = 0; i < started; i++) pthread_join(threads[i], NULL);
    if (started < b->files) return fail("cannot start a thread: %s", strerror(errno));
    for (int i = 0; i < b->files && !rc; i++)
        if (parts[i].rc) {
            rc = say(parts[i].error);
            parts[i].error = NULL;
        }
    return rc;
}

static void free_parts(struct part *parts, int count) {
    for (int i = 0; i < count; i++) {
        free(parts[i].ranges);
        free(parts[i].error);
    }
}

// ---------------------------------------------------------------- measurements
// Nothing of an earlier measurement is left, and nothing is on its way to the disk.
static int clear(struct checkpoint_bench *b) {
    checkpoint_drop_later(b->dir, CHECKPOINT_ALL, -1);
    checkpoint_sweep(b->dir, CHECKPOINT_ALL, 0);
    for (int i = 0; i < b->files; i++) {
        char *path = plain_path(b, i);
        unlink(path);
        free(path);
    }
    int fd = open(b->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int rc = fd < 0 || syncfs(fd) ? fail("%s: cannot bring to disk: %s", b->dir, strerror(errno)) : 0;
    if (fd >= 0) close(fd);
    return rc;
}

static int complete(struct checkpoint_bench *b, struct part *parts) {
    const char *names[CHECKPOINT_FILES_MAX];
    char *error = NULL;
    struct train_state train = {.step = b->step, .updates = b->step, .samples = b->step, .dealt = b->step};
    for (int i = 0; i < b->files; i++) names[i] = parts[i].name;
    struct checkpoint_commit c = {.run_dir = b->dir,
                                  .life = LIFE,
                                  .participants = names,
                                  .count = b->files,
                                  .train = &train,
                                  .dtype = b->dtype,
                                  .optimizer = b->optimizer,
                                  .states = b->states};
    return checkpoint_complete(&c, NULL, &error) ? say(error) : 0;
}

int checkpoint_bench_write(struct checkpoint_bench *b) {
    struct part parts[CHECKPOINT_FILES_MAX] = {0};
    if (clear(b)) return -1;
    b->step++;
    double start = now_seconds(), user = 0, system = 0;
    int rc = all_at_once(b, parts, write_thread);
    if (rc == 0) rc = complete(b, parts);
    double end = now_seconds(), handed_over = start, finished = start;
    for (int i = 0; i < b->files; i++) {
        if (parts[i].handed_over_s > handed_over) handed_over = parts[i].handed_over_s;
        if (parts[i].finished_s > finished) finished = parts[i].finished_s;
        user += parts[i].user;
        system += parts[i].system;
    }
    keep(b, WHOLE, end - start);
    keep(b, HANDING_OVER, handed_over - start);
    keep(b, FINISHING, finished - handed_over);
    keep(b, COMPLETING, end - finished);
    keep(b, USER, user);
    keep(b, SYSTEM, system);
    free_parts(parts, b->files);
    return rc;
}

static int timed(struct checkpoint_bench *b, void *(*run)(void *), enum checkpoint_series s) {
    struct part parts[CHECKPOINT_FILES_MAX] = {0};
    double start = now_seconds();
    int rc = all_at_once(b, parts, run);
    keep(b, s, parts[0].unable ? 0 : now_seconds() - start);
    free_parts(parts, b->files);
    return rc;
}

int checkpoint_bench_plain(struct checkpoint_bench *b) {
    return clear(b) ? -1 : timed(b, plain_thread, PLAIN);
}

int checkpoint_bench_direct(struct checkpoint_bench *b) {
    return clear(b) ? -1 : timed(b, direct_thread, DIRECT);
}

int checkpoint_bench_hash(struct checkpoint_bench *b) { return timed(b, hash_thread, HASH); }

// Of a checkpoint's files, manifest aside.
static double bytes_of(const struct checkpoint_bench *b) {
    double bytes = 0;
    for (int i = 0; i < b->files; i++) bytes += (double)b->file_bytes[i];
    return bytes;
}

// ---------------------------------------------------------------- reading
static char *step_path(const struct checkpoint_bench *b) {
    return xasprintf("%s/checkpoints/step-%lld", b->dir, (long long)b->step);
}

static char *file_path(const struct checkpoint_bench *b, int rank) {
    char *dir = step_path(b), *path = xasprintf("%s/worker-%d.safetensors", dir, rank);
    free(dir);
    return path;
}

// Bytes of the file that are in memory, after asking for none to be.
static int64_t forget(int fd, int64_t bytes) {
    long page = sysconf(_SC_PAGESIZE);
    size_t pages = ((size_t)bytes + (size_t)page - 1) / (size_t)page;
    int64_t resident = 0;
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    void *at = mmap(NULL, (size_t)bytes, PROT_READ, MAP_SHARED, fd, 0);
    unsigned char *there = xcalloc(pages, 1);
    if (at != MAP_FAILED) {
        if (!mincore(at, (size_t)bytes, there))
            for (size_t i = 0; i < pages; i++) resident += there[i] & 1 ? page : 0;
        munmap(at, (size_t)bytes);
    }
    free(there);
    return resident < bytes ? resident : bytes;
}

static int forget_files(const struct checkpoint_bench *b, double *cached) {
    double resident = 0;
    for (int i = 0; i < b->files; i++) {
        char *path = file_path(b, i);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        int rc = fd < 0 ? fail("%s: cannot open: %s", path, strerror(errno)) : 0;
        free(path);
        if (rc) return rc;
        resident += (double)forget(fd, b->file_bytes[i]);
        close(fd);
    }
    *cached = resident / bytes_of(b);
    return 0;
}

// All values, against those that were written.
static int read_values(struct checkpoint_bench *b, struct checkpoint *c, double *seconds) {
    for (int u = 0; u < b->layout->count; u++)
        for (int kind = 0; kind < kinds(b); kind++) {
            int64_t n = b->layout->units[u].n_pad;
            double start = now_seconds();
            int rc = checkpoint_read(c, b->layout, u, kind, 0, n, b->back);
            *seconds += now_seconds() - start;
            if (rc) return -1;
            if (memcmp(b->back, state_of(b, u, kind), (size_t)n * sizeof *b->back) != 0)
                return fail("%s: unit %s reads back as other values than were written", checkpoint_path(c),
                            b->layout->units[u].name);
        }
    return 0;
}

int checkpoint_bench_read(struct checkpoint_bench *b) {
    double cached, seconds;
    if (forget_files(b, &cached)) return -1;
    char *path = step_path(b);
    double start = now_seconds();
    struct checkpoint *c = checkpoint_open(path);
    seconds = now_seconds() - start;
    free(path);
    int rc = c ? read_values(b, c, &seconds) : -1;
    checkpoint_close(&c);
    keep(b, READ, seconds);
    keep(b, READ_CACHED, cached);
    return rc;
}

// Into memory that takes one unit, over and over.
static int read_plain(const struct checkpoint_bench *b, const char *path, int64_t room) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return fail("%s: cannot open: %s", path, strerror(errno));
    int64_t at = 0;
    ssize_t n;
    do {
        int64_t most = room - at < PLAIN_BYTES ? room - at : PLAIN_BYTES;
        n = read(fd, (char *)b->back + at, (size_t)most);
        if (n > 0) at = (at + n) % room;
    } while (n > 0 || (n < 0 && errno == EINTR));
    int rc = n < 0 ? fail("%s: cannot read: %s", path, strerror(errno)) : 0;
    close(fd);
    return rc;
}

static int64_t largest_unit(const struct layout *l) {
    int64_t most = 0;
    for (int u = 0; u < l->count; u++) most = l->units[u].n_pad > most ? l->units[u].n_pad : most;
    return most;
}

int checkpoint_bench_read_plain(struct checkpoint_bench *b) {
    int64_t room = largest_unit(b->layout) * (int64_t)sizeof *b->back;
    double cached;
    if (forget_files(b, &cached)) return -1;
    double start = now_seconds();
    for (int i = 0; i < b->files; i++) {
        char *path = file_path(b, i);
        int rc = read_plain(b, path, room);
        free(path);
        if (rc) return -1;
    }
    keep(b, READ_PLAIN, now_seconds() - start);
    keep(b, READ_PLAIN_CACHED, cached);
    return 0;
}

// ---------------------------------------------------------------- the place and the state
// Random bits where there are tensors; nothing compresses or repeats them.
static void fill_state(struct checkpoint_bench *b) {
    uint64_t x = 0x9e3779b97f4a7c15ULL;
    for (int u = 0; u < b->layout->count; u++)
        for (int kind = 0; kind < kinds(b); kind++)
            for (int i = 0; i < b->layout->units[u].count; i++) {
                const struct tensor *t = &b->layout->units[u].tensors[i];
                float *at = state_of(b, u, kind) + t->offset;
                for (int64_t k = 0; k < t->numel; k++) {
                    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
                    uint32_t bits = (uint32_t)(x >> 32);
                    memcpy(at + k, &bits, sizeof bits);
                }
            }
}

int checkpoint_bench_open(struct checkpoint_bench *b) {
    char *dir = xasprintf("%s/starring-bench-XXXXXX", b->where);
    if (!mkdtemp(dir)) {
        int rc = fail("--dir %s: cannot make a directory there: %s", b->where, strerror(errno));
        free(dir);
        return rc;
    }
    b->dir = dir;
    b->elements = b->layout->padded * kinds(b);
    size_t bytes = (size_t)b->elements * sizeof *b->state;
    b->state = aligned_alloc(BLOCK_BYTES, (bytes + BLOCK_BYTES - 1) / BLOCK_BYTES * BLOCK_BYTES);
    if (!b->state) return fail("no memory for %zu bytes of state", bytes);
    memset(b->state, 0, bytes);
    b->back = xcalloc((unsigned long)largest_unit(b->layout), sizeof *b->back);
    fill_state(b);
    return 0;
}

void checkpoint_bench_close(struct checkpoint_bench *b) {
    if (b->dir) {
        char *checkpoints = xasprintf("%s/checkpoints", b->dir);
        clear(b);
        rmdir(checkpoints);
        if (rmdir(b->dir)) warn("%s: cannot remove: %s", b->dir, strerror(errno));
        free(checkpoints);
    }
    free(b->dir);
    free(b->state);
    free(b->back);
    for (int i = 0; i < CHECKPOINT_SERIES; i++) bench_series_free(&b->series[i]);
}

// ---------------------------------------------------------------- figures
static double of(const struct checkpoint_bench *b, enum checkpoint_series s) {
    return bench_series_median(&b->series[s]);
}

// The faster of the two plain ways, by their medians.
static enum checkpoint_series best_plain(const struct checkpoint_bench *b) {
    double direct = of(b, DIRECT);
    return direct > 0 && direct < of(b, PLAIN) ? DIRECT : PLAIN;
}

// A plain way's seconds over the checkpoint's, each of the same round: bytes are equal, so this is the share of its rate.
static double share(const struct checkpoint_bench *b, enum checkpoint_series plain,
                    enum checkpoint_series ours) {
    return bench_series_ratio(&b->series[plain], &b->series[ours]);
}

static double state_bytes(const struct checkpoint_bench *b) { return (double)b->elements * sizeof(float); }

// Remarks on a place that is no disk.
static const char *remark(const char *file_system) {
    if (!strcmp(file_system, "tmpfs")) return "memory, no disk: nothing written there survives a reboot";
    if (!strcmp(file_system, "overlay")) return "an overlay: what is below it does the writing";
    if (!strcmp(file_system, "nfs") || !strcmp(file_system, "9p") || !strcmp(file_system, "fuse"))
        return "another machine or program does the writing";
    return NULL;
}

static cJSON *put_rate(cJSON *j, const char *key, double bytes, double seconds) {
    cJSON *o = cJSON_AddObjectToObject(j, key);
    json_put(o, "seconds", seconds);
    json_put(o, "bytes_per_second", bytes / seconds);
    return o;
}

static void print_json(const struct checkpoint_bench *b) {
    char text[FILE_SYSTEM_BYTES];
    double bytes = bytes_of(b), whole = of(b, WHOLE);
    cJSON *j = cJSON_CreateObject();
    cJSON_AddStringToObject(j, "bench", "checkpoint");
    cJSON_AddStringToObject(j, "model", b->spec.name);
    json_put(j, "params", (double)b->layout->params);
    cJSON_AddStringToObject(j, "optimizer", b->optimizer);
    json_put(j, "numbers_per_parameter", 1 + b->states);
    json_put(j, "files", b->files);
    json_put(j, "bytes", bytes);
    cJSON_AddStringToObject(j, "directory", b->where);
    cJSON_AddStringToObject(j, "file_system", file_system_of(b->dir, text));
    json_put_text(j, "file_system_remark", remark(text));
    json_put(j, "rounds", b->series[WHOLE].count);
    cJSON *w = put_rate(j, "write", bytes, whole);
    json_put(w, "handing_over_seconds", of(b, HANDING_OVER));
    json_put(w, "finishing_seconds", of(b, FINISHING));
    json_put(w, "completing_seconds", of(b, COMPLETING));
    json_put(w, "user_cpu_seconds", of(b, USER));
    json_put(w, "system_cpu_seconds", of(b, SYSTEM));
    put_rate(j, "plain_write", bytes, of(b, PLAIN));
    if (of(b, DIRECT) > 0)
        put_rate(j, "direct_write", bytes, of(b, DIRECT));
    else
        cJSON_AddNullToObject(j, "direct_write");
    cJSON *d = put_rate(j, "disk", bytes, of(b, best_plain(b)));
    cJSON_AddStringToObject(d, "is", best_plain(b) == DIRECT ? "direct_write" : "plain_write");
    json_put(d, "spread", bench_series_spread(&b->series[best_plain(b)]));
    json_put(j, "share_of_disk", share(b, best_plain(b), WHOLE));
    json_put(j, "share_of_plain_write", share(b, PLAIN, WHOLE));
    json_put(j, "target_share_of_disk", TARGET);
    json_put(put_rate(j, "xxh64", state_bytes(b), of(b, HASH)), "share_of_write", of(b, HASH) / whole);
    json_put(put_rate(j, "read", bytes, of(b, READ)), "cached", of(b, READ_CACHED));
    json_put(put_rate(j, "plain_read", bytes, of(b, READ_PLAIN)), "cached", of(b, READ_PLAIN_CACHED));
    json_put(j, "share_of_plain_read", share(b, READ_PLAIN, READ));
    json_print(stdout, j);
    cJSON_Delete(j);
}

static void print_rate(const char *what, double bytes, double seconds) {
    printf("%-14s %.3f s, %.1f MB/s", what, seconds, 1e-6 * bytes / seconds);
}

static void print_table(const struct checkpoint_bench *b) {
    char text[FILE_SYSTEM_BYTES];
    double bytes = bytes_of(b);
    int rounds = b->series[WHOLE].count;
    const char *words = remark(file_system_of(b->dir, text));
    printf("model          %s, %lld parameters, %s: %d numbers of 4 bytes each\n", b->spec.name,
           (long long)b->layout->params, b->optimizer, 1 + b->states);
    printf("checkpoint     %.0f bytes in %d file%s, each from a thread of its own\n", bytes, b->files,
           bench_plural(b->files));
    printf("place          %s: %s%s%s\n", b->where, text, words ? ", " : "", words ? words : "");
    print_rate("written", bytes, of(b, WHOLE));
    printf(" (median of %d round%s, in turn with the next lines)\n", rounds, bench_plural(rounds));
    print_rate("plain write", bytes, of(b, PLAIN));
    printf(" (write and fsync of the same bytes)\n");
    if (of(b, DIRECT) > 0) {
        print_rate("direct write", bytes, of(b, DIRECT));
        printf(" (likewise with O_DIRECT, room reserved)\n");
    }
    printf("share          %.2f of the plain write; %.2f of the faster one (its spread %.2f), wanted %.2f\n",
           share(b, PLAIN, WHOLE), share(b, best_plain(b), WHOLE),
           bench_series_spread(&b->series[best_plain(b)]), TARGET);
    printf("of it          handing over %.3f s, the rest to disk %.3f s, manifest and rename %.3f s\n",
           of(b, HANDING_OVER), of(b, FINISHING), of(b, COMPLETING));
    printf("CPU            %.3f s of the program, %.3f s of the kernel\n", of(b, USER), of(b, SYSTEM));
    print_rate("xxh64", state_bytes(b), of(b, HASH));
    printf(": %.1f%% of the time of writing\n", 100 * of(b, HASH) / of(b, WHOLE));
    print_rate("read, verified", bytes, of(b, READ));
    printf(" (%.0f%% was in memory)\n", 100 * of(b, READ_CACHED));
    print_rate("plain read", bytes, of(b, READ_PLAIN));
    printf(" (%.0f%% was in memory)\n", 100 * of(b, READ_PLAIN_CACHED));
    printf("share          %.2f of the plain read\n", share(b, READ_PLAIN, READ));
}

// ---------------------------------------------------------------- the command
// Ctrl-C ends the bench behind the measurement in hand, so that nothing is left on the disk.
static volatile sig_atomic_t stopped;
static void stop(int number) {
    (void)number;
    stopped = 1;
}

static int load(struct checkpoint_bench *b, const struct topology_table *topologies,
                const struct cli_args *a) {
    const struct config_override defaults[] = {{"topology", "local", "bench checkpoint"},
                                               {"model", "gpt2-124m", "bench checkpoint"},
                                               {"data.path", "demo", "bench checkpoint"},
                                               {"optimizer.type", "AdamW", "bench checkpoint"}};
    b->config = cli_config(topologies, defaults, sizeof defaults / sizeof *defaults, a);
    if (!b->config || model_spec_load(b->config->model, &b->spec)) return -1;
    if (b->config->row != &topology_local)
        return fail(
            "bench checkpoint: --set topology=%s: no topology is measured here; --files says how many write",
            b->config->topology);
    b->states = b->config->optimizer.row->states;
    b->optimizer = b->config->optimizer.row->name;
    b->dtype = dtype_name(b->config->dtype);
    b->layout = model_layout_create(&b->spec, 1);
    return b->layout ? 0 : -1;
}

// Before any is taken. 0, or -1 after saying how much is missing.
static int check_memory(const struct checkpoint_bench *b) {
    char needs[24], has[24];
    struct memory_limit limit;
    // The largest unit is read back beside the state: no more than a copy of the masters.
    double bytes = sizeof(float) * (double)b->layout->padded * (2 + b->states);
    if (memory_limit_read("", &limit) || bytes <= limit.free_bytes) return 0;
    return fail(
        "bench checkpoint --model %s needs %s of memory, %s are left (%s): a smaller model needs less",
        b->spec.name, format_bytes(needs, bytes), format_bytes(has, limit.free_bytes), limit.name);
}

// One round. Another part begins in each round.
static int measure(struct checkpoint_bench *b) {
    int rc = 0;
    for (int k = 0; k < 3 && !rc && !stopped; k++) {
        // The first checkpoint tells the others how many bytes there are.
        int part = (k + b->round) % 3;
        if (part == 0)
            rc = checkpoint_bench_write(b) || checkpoint_bench_read(b) || checkpoint_bench_read_plain(b);
        else
            rc = part == 1 ? checkpoint_bench_plain(b) : checkpoint_bench_direct(b);
    }
    return rc || stopped ? -1 : checkpoint_bench_hash(b);
}

static int run_rounds(struct checkpoint_bench *b, int rounds, bool json) {
    struct sigaction a = {.sa_handler = stop, .sa_flags = SA_RESTART | SA_RESETHAND};
    sigemptyset(&a.sa_mask);
    if (check_memory(b)) return -1;
    if (sigaction(SIGINT, &a, NULL) || sigaction(SIGTERM, &a, NULL)) return fail("cannot catch signals");
    if (checkpoint_bench_open(b)) return -1;
    for (b->round = 0; b->round <= rounds; b->round++)
        if (measure(b)) return stopped ? fail("bench checkpoint: stopped by a signal") : -1;
    (json ? print_json : print_table)(b);
    return 0;
}

static int run(const struct topology_table *topologies, const struct cli_args *a) {
    struct checkpoint_bench b = {.where = cli_get(a, "dir") ? cli_get(a, "dir") : "."};
    long files, rounds;
    int status = EXIT_USAGE;
    if (!cli_integer(a, "files", 1, CHECKPOINT_FILES_MAX, 1, &files) &&
        !cli_integer(a, "rounds", 1, BENCH_ROUNDS_MOST, 5, &rounds) && !load(&b, topologies, a)) {
        b.files = (int)files;
        status = run_rounds(&b, (int)rounds, cli_get(a, "json") != NULL) ? EXIT_RUN_FAILED : 0;
        checkpoint_bench_close(&b);
    }
    layout_destroy(&b.layout);
    config_destroy(&b.config);
    return status;
}

const struct bench_program bench_checkpoint = {
    "writing and reading a model's checkpoint beside the disk's own rate", &command, run};
