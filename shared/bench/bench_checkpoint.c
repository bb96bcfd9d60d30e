// `starring bench checkpoint`: the command, its measurements and their figures.
#include "shared/bench/bench_checkpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shared/core/disk.h"
#include "shared/core/error.h"
#include "shared/core/json.h"
#include "shared/hf/presets.h"
#include "shared/launch/local.h"
#include "shared/model/model.h"
#include "shared/state/checkpoint_read.h"

#define TARGET      0.8  // target: share of a plain write's rate
#define INCARNATION 0x62656e6368ULL
#define PLAIN_BYTES ((int64_t)8 << 20)  // bytes of one plain write or read
#define NAME_BYTES  32

static const struct bench_option options[] = {
    {"model", "M", "preset, Hugging Face config.json or directory (gpt2-124m)", BENCH_KEY("model")},
    {"dir", "DIR", "where to write: a directory of the file system that is meant",
     BENCH_STRING(checkpoint_bench, where, ".")},
    {"files", "N", "participants, each with a file and a thread of its own",
     BENCH_INTEGER(checkpoint_bench, files, 1, CHECKPOINT_FILES_MAX, 1)},
    {"set", "KEY=VALUE", "any configuration key; optimizer.type decides how much there is to write",
     BENCH_KEY(CLI_SET)},
};

// Logs an error text of shared/state, and frees it.
static int log_error(char *error) {
    int rc = fail("%s", error ? error : "a checkpoint could not be written, and no reason was reported");
    free(error);
    return rc;
}

// ---------------------------------------------------------------- participants
// One participant, on its own thread.
struct part {
    struct checkpoint_bench *b;
    int rank;
    char name[NAME_BYTES];
    struct state_range *ranges;
    int count;
    char *error;
    int rc;
};

static int kinds(const struct checkpoint_bench *b) { return STATE_OPTIMIZER + b->states; }

// Returns the first element of a unit's kind.
static float *state_of(const struct checkpoint_bench *b, int unit, int kind) {
    float *at = b->state;
    for (int u = 0; u < unit; u++) at += b->layout->units[u].n_pad * kinds(b);
    return at + b->layout->units[unit].n_pad * kind;
}

static int write_part(struct part *p) {
    struct checkpoint_bench *b = p->b;
    char *dir = checkpoint_partial(b->dir, CHECKPOINT_ALL, b->step, INCARNATION);
    struct part_file *f = part_file_create(
        &(struct part_options){
            .dir = dir, .participant = p->name, .layout = b->layout, .ranges = p->ranges, .count = p->count},
        &p->error);
    free(dir);
    if (!f) return -1;
    b->file_bytes[p->rank] = part_file_bytes(f);
    for (int i = 0; i < p->count; i++) {
        const struct state_range *r = &p->ranges[i];
        if (part_file_write(f, i, r->begin, r->end, r->data)) break;  // part_file_finish reports the error
    }
    return part_file_finish(&f, &p->error);
}

static void *write_thread(void *arg) {
    struct part *p = arg;
    p->rc = write_part(p);
    return NULL;
}

static char *plain_path(const struct checkpoint_bench *b, int rank) {
    return xasprintf("%s/plain-%d", b->dir, rank);
}

// Writes as many bytes as the participant's file has, from its share of the buffer on; wraps around at the end of the
// buffer.
static int write_all(const struct part *p, int fd, const char *path, char **error) {
    const struct checkpoint_bench *b = p->b;
    const char *state = (const char *)b->state;
    int64_t size = b->elements * (int64_t)sizeof *b->state;
    int64_t at = size / b->files * p->rank;
    for (int64_t left = b->file_bytes[p->rank]; left > 0;) {
        int64_t n = left < PLAIN_BYTES ? left : PLAIN_BYTES;
        if (n > size - at) n = size - at;
        if (disk_write(fd, path, state + at, (size_t)n, error)) return -1;
        at = (at + n) % size;
        left -= n;
    }
    return 0;
}

static void *plain_thread(void *arg) {
    struct part *p = arg;
    char *path = plain_path(p->b, p->rank);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    p->rc = fd < 0 ? -1 : write_all(p, fd, path, &p->error);
    if (p->rc == 0) p->rc = fsync(fd);
    if (fd >= 0 && close(fd)) p->rc = -1;
    if (p->rc) disk_error(&p->error, "%s: cannot write: %s", path, strerror(errno));
    free(path);
    return NULL;
}

// Runs all participants at once and waits for the last one. parts: b->files of them; free them with free_parts.
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
            rc = log_error(parts[i].error);
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
// Removes the files of earlier measurements and waits until nothing is left to write to the disk.
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

static int commit(struct checkpoint_bench *b, struct part *parts) {
    const char *names[CHECKPOINT_FILES_MAX];
    char *error = NULL;
    struct train_state train = {
        .step = b->step, .updates = b->step, .samples = b->step, .handed_out = b->step};
    for (int i = 0; i < b->files; i++) names[i] = parts[i].name;
    struct checkpoint_commit c = {.run_dir = b->dir,
                                  .start_number = INCARNATION,
                                  .participants = names,
                                  .count = b->files,
                                  .train = &train,
                                  .dtype = b->dtype,
                                  .optimizer = b->optimizer,
                                  .states = b->states};
    return checkpoint_complete(&c, NULL, &error) ? log_error(error) : 0;
}

int checkpoint_bench_write(struct checkpoint_bench *b) {
    struct part parts[CHECKPOINT_FILES_MAX] = {0};
    if (clear(b)) return -1;
    b->step++;
    double start = now_seconds();
    int rc = all_at_once(b, parts, write_thread);
    if (rc == 0) rc = commit(b, parts);
    b->seconds[WRITE] = now_seconds() - start;
    free_parts(parts, b->files);
    return rc;
}

int checkpoint_bench_plain(struct checkpoint_bench *b) {
    struct part parts[CHECKPOINT_FILES_MAX] = {0};
    if (clear(b)) return -1;
    double start = now_seconds();
    int rc = all_at_once(b, parts, plain_thread);
    b->seconds[WRITE_PLAIN] = now_seconds() - start;
    free_parts(parts, b->files);
    return rc;
}

// Returns the bytes of a checkpoint's files, without the manifest.
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

// Asks the kernel to drop the files' contents from its cache.
static int drop_from_cache(const struct checkpoint_bench *b) {
    for (int i = 0; i < b->files; i++) {
        char *path = file_path(b, i);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        int rc = fd < 0 ? fail("%s: cannot open: %s", path, strerror(errno)) : 0;
        free(path);
        if (rc) return rc;
        posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        close(fd);
    }
    return 0;
}

// Reads all values and compares them with those that were written.
static int read_values(struct checkpoint_bench *b, struct checkpoint *c) {
    for (int u = 0; u < b->layout->count; u++)
        for (int kind = 0; kind < kinds(b); kind++) {
            int64_t n = b->layout->units[u].n_pad;
            double start = now_seconds();
            int rc = checkpoint_read(c, b->layout, u, kind, 0, n, b->back);
            b->seconds[READ] += now_seconds() - start;
            if (rc) return -1;
            if (memcmp(b->back, state_of(b, u, kind), (size_t)n * sizeof *b->back) != 0)
                return fail("%s: unit %s reads back as other values than were written", checkpoint_path(c),
                            b->layout->units[u].name);
        }
    return 0;
}

int checkpoint_bench_read(struct checkpoint_bench *b) {
    if (drop_from_cache(b)) return -1;
    char *path = step_path(b);
    double start = now_seconds();
    struct checkpoint *c = checkpoint_open(path);
    b->seconds[READ] = now_seconds() - start;
    free(path);
    int rc = c ? read_values(b, c) : -1;
    checkpoint_close(&c);
    return rc;
}

// Reads a whole file through a buffer of one unit.
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

int checkpoint_bench_read_plain(struct checkpoint_bench *b) {
    int64_t room = layout_largest(b->layout) * (int64_t)sizeof *b->back;
    if (drop_from_cache(b)) return -1;
    double start = now_seconds();
    for (int i = 0; i < b->files; i++) {
        char *path = file_path(b, i);
        int rc = read_plain(b, path, room);
        free(path);
        if (rc) return -1;
    }
    b->seconds[READ_PLAIN] = now_seconds() - start;
    return 0;
}

// ---------------------------------------------------------------- directory and state
// Random bits where there are tensors, so no file system can compress or deduplicate them.
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
    b->state = calloc(1, bytes);
    if (!b->state) return fail("no memory for %zu bytes of state", bytes);
    b->back = xcalloc((unsigned long)layout_largest(b->layout), sizeof *b->back);
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

// ---------------------------------------------------------------- figures
// Returns a note for a file system that is no local disk, or NULL.
static const char *remark(const char *file_system) {
    if (!strcmp(file_system, "tmpfs")) return "memory, no disk: nothing written there survives a reboot";
    if (!strcmp(file_system, "overlay")) return "an overlay: what is below it does the writing";
    if (!strcmp(file_system, "nfs") || !strcmp(file_system, "9p") || !strcmp(file_system, "fuse"))
        return "another machine or program does the writing";
    return NULL;
}

// ours: the checkpoint's series; the plain way's is the next one.
static void put_row(struct bench_run *r, const char *key, enum checkpoint_series ours) {
    const struct checkpoint_bench *b = r->state;
    static const char *const ways[] = {"checkpoint", "plain"};
    cJSON *row = bench_row(r, key);
    for (int i = 0; i < 2; i++) {
        double seconds = bench_series_median(&b->series[ours + i]);
        cJSON *way = cJSON_AddObjectToObject(row, ways[i]);
        BENCH_PUT(way, NUMBER("seconds", seconds), NUMBER("bytes_per_second", bytes_of(b) / seconds));
    }
    // The bytes are equal, so the ratio of the seconds is the share of the plain rate.
    BENCH_PUT(row, NUMBER("share_of_plain", bench_series_ratio(&b->series[ours + 1], &b->series[ours])),
              NUMBER("plain_spread", bench_series_spread(&b->series[ours + 1])));
    if (ours == WRITE) json_put(row, "#target", TARGET);
}

static int put_rows(struct bench_run *r) {
    const struct checkpoint_bench *b = r->state;
    json_put(r->document, "bytes", bytes_of(b));
    put_row(r, "write", WRITE);
    put_row(r, "read", READ);
    json_put(r->document, "target_share_of_plain_write", TARGET);
    return 0;
}

// ---------------------------------------------------------------- the bench
// Ctrl-C ends the bench after the current measurement, so that no files are left.
static volatile sig_atomic_t stopped;
static void stop(int number) {
    (void)number;
    stopped = 1;
}

static int set_up(struct bench_run *r) {
    struct checkpoint_bench *b = r->state;
    const struct config_override defaults[] = {{"topology", "local", "bench checkpoint"},
                                               {"model", "gpt2-124m", "bench checkpoint"},
                                               {"data.path", "demo", "bench checkpoint"},
                                               {"optimizer.type", "AdamW", "bench checkpoint"}};
    char text[FILE_SYSTEM_BYTES];
    // 1. The configuration.
    struct config *c = b->config =
        cli_config(r->topologies, defaults, sizeof defaults / sizeof *defaults, r->args);
    if (!c || model_spec_load(c->model, &b->spec)) return EXIT_USAGE;
    if (c->row != &topology_local) {
        fail("bench checkpoint: --set topology=%s: no topology is measured here; --files sets how many write",
             c->topology);
        return EXIT_USAGE;
    }
    b->states = c->optimizer.row->states;
    b->optimizer = c->optimizer.row->name;
    b->dtype = dtype_name(c->dtype);
    if (!(b->layout = model_layout_create(&b->spec, 1))) return EXIT_USAGE;
    // 2. Memory, before it is allocated. The largest unit is read into a second buffer: at most the size of the masters.
    double bytes = sizeof(float) * (double)b->layout->padded * (2 + b->states);
    if (bench_check_memory(NULL, bytes, "bench checkpoint: the state and one unit take",
                           "a smaller --model needs less"))
        return EXIT_RUN_FAILED;
    // 3. The directory and the state.
    struct sigaction on_signal = {.sa_handler = stop, .sa_flags = SA_RESTART | SA_RESETHAND};
    sigemptyset(&on_signal.sa_mask);
    if (sigaction(SIGINT, &on_signal, NULL) || sigaction(SIGTERM, &on_signal, NULL))
        return fail("cannot catch signals"), EXIT_RUN_FAILED;
    if (checkpoint_bench_open(b)) return EXIT_RUN_FAILED;
    // 4. The figures in the JSON document.
    file_system_of(b->dir, text);
    BENCH_PUT(r->document, TEXT("model", b->spec.name), NUMBER("params", b->layout->params),
              TEXT("optimizer", b->optimizer), NUMBER("numbers_per_parameter", 1 + b->states),
              NUMBER("files", b->files), TEXT("directory", b->where), TEXT("file_system", text),
              TEXT("file_system_remark", remark(text)));
    return 0;
}

// The first checkpoint gives the plain files their sizes; afterwards the two ways alternate in running first.
static int measure(struct bench_run *r) {
    struct checkpoint_bench *b = r->state;
    int rc = 0, first = r->round + 1;
    for (int k = 0; k < 2 && !rc && !stopped; k++)
        if ((k + first) % 2)
            rc = checkpoint_bench_plain(b);
        else
            rc = checkpoint_bench_write(b) || checkpoint_bench_read(b) || checkpoint_bench_read_plain(b);
    if (stopped) rc = fail("bench checkpoint: stopped by a signal");
    for (int i = 0; i < CHECKPOINT_SERIES && !rc; i++) bench_measured(r, &b->series[i], b->seconds[i]);
    return rc ? EXIT_RUN_FAILED : 0;
}

static void tear_down(struct bench_run *r) {
    struct checkpoint_bench *b = r->state;
    checkpoint_bench_close(b);
    layout_destroy(&b->layout);
    config_destroy(&b->config);
}

const struct bench bench_checkpoint = {
    .about = "writing and reading a model's checkpoint, compared with the disk's own rate",
    .command =
        {
            .name = "bench checkpoint",
            .usage = "[--model M] [--dir DIR] [--files N] [OPTIONS]",
            .summary =
                "Writes a model's training state (masters and optimizer states, fp32 in every run) as a run writes its\n"
                "checkpoints, to the rename, in turn with the same bytes through plain large writes and fsync, and reads it\n"
                "back, every byte verified, beside plain reads: seconds, and the share of the plain rate. Its files lie in\n"
                "a directory of its own below --dir, which is removed.",
            .examples = "  starring bench checkpoint --model demo\n"
                        "  starring bench checkpoint --model gpt2-124m --dir /scratch --rounds 3\n"
                        "  starring bench checkpoint --model gpt2-124m --files 4 --json\n",
        },
    BENCH_OPTIONS(options),
    .state_bytes = sizeof(struct checkpoint_bench),
    .rounds = 5,
    .warm_up = 1,
    .set_up = set_up,
    .round = measure,
    .rows = put_rows,
    .tear_down = tear_down,
    .head = BENCH_LINES(
        {NULL,
         "bench checkpoint: {model}, {optimizer}: {params} parameters of {numbers_per_parameter} numbers of 4 bytes; {bytes} bytes in {files} file{files:s}"},
        {NULL,
         "{directory}: {file_system}; medians of {rounds} round{rounds:s}, what was read back was compared"},
        {NULL, "{file_system}: {file_system_remark}"}),
    .columns = BENCH_COLUMNS({"", NULL, "<{@}"}, {"checkpoint|time", "s", "{checkpoint.seconds:.3}"},
                             {"rate", "MB/s", "{checkpoint.bytes_per_second:.1M}"},
                             {"plain|time", "s", "{plain.seconds:.3}"},
                             {"rate", "MB/s", "{plain.bytes_per_second:.1M}"},
                             {"|share", "of plain", "{share_of_plain:.2}"}, {"target", NULL, "{#target:.2}"}),
};
