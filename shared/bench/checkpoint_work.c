#include "shared/bench/checkpoint_work.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>
#include <xxhash.h>

#include "shared/core/disk.h"
#include "shared/core/error.h"
#include "shared/state/checkpoint_read.h"

#define LIFE        0x62656e6368ULL
#define PLAIN_BYTES ((int64_t)8 << 20)  // of a plain write and read
#define HASH_BYTES  ((size_t)1 << 20)   // at once: what a part file hashes at once
#define BLOCK_BYTES 4096                // O_DIRECT: lengths and addresses are multiples of it
#define NAME_BYTES  32

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

static void list_ranges(struct part *p) {
    const struct layout *l = p->b->layout;
    p->ranges = xcalloc((unsigned long)(l->count * kinds(p->b)), sizeof *p->ranges);
    for (int u = 0; u < l->count; u++)
        for (int kind = 0; kind < kinds(p->b); kind++) {
            int64_t n = l->units[u].n_pad, begin = n * p->rank / p->b->files;
            p->ranges[p->count++] = (struct state_range){.unit = u,
                                                         .kind = kind,
                                                         .begin = begin,
                                                         .end = n * (p->rank + 1) / p->b->files,
                                                         .data = state_of(p->b, u, kind) + begin};
        }
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
    char *dir = checkpoint_partial(b->dir, b->step, LIFE);
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

static void write_plain(struct part *p, bool direct) {
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
}

static void *plain_thread(void *arg) {
    write_plain(arg, false);
    return NULL;
}

static void *direct_thread(void *arg) {
    write_plain(arg, true);
    return NULL;
}

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
        list_ranges(&parts[i]);
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
    checkpoint_drop_later(b->dir, -1);
    checkpoint_sweep(b->dir, 0);
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

int checkpoint_bench_write(struct checkpoint_bench *b, struct checkpoint_times *out) {
    struct part parts[CHECKPOINT_FILES_MAX] = {0};
    if (clear(b)) return -1;
    b->step++;
    double start = now_seconds();
    int rc = all_at_once(b, parts, write_thread);
    if (rc == 0) rc = complete(b, parts);
    double end = now_seconds(), handed_over = start, finished = start;
    *out = (struct checkpoint_times){.whole = end - start};
    for (int i = 0; i < b->files; i++) {
        if (parts[i].handed_over_s > handed_over) handed_over = parts[i].handed_over_s;
        if (parts[i].finished_s > finished) finished = parts[i].finished_s;
        out->user += parts[i].user;
        out->system += parts[i].system;
    }
    out->handing_over = handed_over - start;
    out->finishing = finished - handed_over;
    out->completing = end - finished;
    free_parts(parts, b->files);
    return rc;
}

static int timed(struct checkpoint_bench *b, void *(*run)(void *), double *seconds) {
    struct part parts[CHECKPOINT_FILES_MAX] = {0};
    double start = now_seconds();
    int rc = all_at_once(b, parts, run);
    *seconds = parts[0].unable ? 0 : now_seconds() - start;
    free_parts(parts, b->files);
    return rc;
}

int checkpoint_bench_plain(struct checkpoint_bench *b, double *seconds) {
    return clear(b) ? -1 : timed(b, plain_thread, seconds);
}

int checkpoint_bench_direct(struct checkpoint_bench *b, double *seconds) {
    return clear(b) ? -1 : timed(b, direct_thread, seconds);
}

int checkpoint_bench_hash(struct checkpoint_bench *b, double *seconds) {
    return timed(b, hash_thread, seconds);
}

double checkpoint_bench_bytes(const struct checkpoint_bench *b) {
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
    *cached = resident / checkpoint_bench_bytes(b);
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

int checkpoint_bench_read(struct checkpoint_bench *b, struct read_times *out) {
    *out = (struct read_times){0};
    if (forget_files(b, &out->cached)) return -1;
    char *path = step_path(b);
    double start = now_seconds();
    struct checkpoint *c = checkpoint_open(path);
    out->seconds = now_seconds() - start;
    free(path);
    int rc = c ? read_values(b, c, &out->seconds) : -1;
    checkpoint_close(&c);
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

int checkpoint_bench_read_plain(struct checkpoint_bench *b, struct read_times *out) {
    int64_t room = largest_unit(b->layout) * (int64_t)sizeof *b->back;
    *out = (struct read_times){0};
    if (forget_files(b, &out->cached)) return -1;
    double start = now_seconds();
    for (int i = 0; i < b->files; i++) {
        char *path = file_path(b, i);
        int rc = read_plain(b, path, room);
        free(path);
        if (rc) return -1;
    }
    out->seconds = now_seconds() - start;
    return 0;
}

// ---------------------------------------------------------------- the place and the state
const char *file_system_of(const char *dir, char text[FILE_SYSTEM_BYTES]) {
    static const struct {
        long magic;
        const char *name;
    } known[] = {{EXT4_SUPER_MAGIC, "ext4"},   {XFS_SUPER_MAGIC, "xfs"},
                 {BTRFS_SUPER_MAGIC, "btrfs"}, {OVERLAYFS_SUPER_MAGIC, "overlay"},
                 {TMPFS_MAGIC, "tmpfs"},       {NFS_SUPER_MAGIC, "nfs"},
                 {FUSE_SUPER_MAGIC, "fuse"},   {V9FS_MAGIC, "9p"},
                 {F2FS_SUPER_MAGIC, "f2fs"},   {0x2fc12fc1, "zfs"},
                 {0x0bd00bd0, "lustre"}};
    struct statfs fs;
    if (statfs(dir, &fs)) {
        snprintf(text, FILE_SYSTEM_BYTES, "unknown");
        return text;
    }
    snprintf(text, FILE_SYSTEM_BYTES, "0x%lx", (unsigned long)fs.f_type);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if ((long)fs.f_type == known[i].magic) snprintf(text, FILE_SYSTEM_BYTES, "%s", known[i].name);
    return text;
}

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

int checkpoint_bench_open(struct checkpoint_bench *b, const char *where) {
    char *dir = xasprintf("%s/starring-bench-XXXXXX", where);
    if (!mkdtemp(dir)) {
        int rc = fail("--dir %s: cannot make a directory there: %s", where, strerror(errno));
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
}
