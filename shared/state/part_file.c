#include "shared/state/part_file.h"

#include <ctype.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shared/core/disk.h"
#include "shared/core/error.h"
#include "shared/core/json.h"
#include "shared/hf/safetensors.h"
#include "shared/state/manifest.h"

struct part_file {
    const struct layout *layout;
    char *dir, *participant, *error;
    struct st_writer *file;
    struct state_range *ranges;
    int count;
    struct part_extra *extra;  // names belong to the caller, and are not looked at after creation
    int extras;
    int range;   // in hand
    int64_t at;  // its next element
};

// The part of [begin, end) that lies in a tensor; empty where first >= last. Elements of the unit.
struct span {
    int64_t first, last;
};

static struct span span_of(const struct tensor *t, int64_t begin, int64_t end) {
    int64_t over = t->offset + t->numel;
    return (struct span){t->offset > begin ? t->offset : begin, over < end ? over : end};
}

// ---------------------------------------------------------------- the header
struct entries {
    struct st_entry *at;
    int count;
};

static void add(struct entries *e, char *name, enum dtype dtype, int64_t n) {
    e->at = xrealloc(e->at, (unsigned long)(e->count + 1) * sizeof *e->at);
    e->at[e->count++] = (struct st_entry){.name = name, .dtype = dtype, .dims = 1, .shape = {n}};
}

static const char *const own_names[] = {"error"};  // of kinds -1, -2, ..
#define OWN_KINDS ((int)(sizeof own_names / sizeof *own_names))

const char *state_own_name(int kind) { return kind < 0 && kind >= -OWN_KINDS ? own_names[-1 - kind] : NULL; }

int state_own_kind(const char *piece) {
    for (int i = 0; i < OWN_KINDS; i++) {
        size_t n = strlen(own_names[i]);
        if (!strncmp(piece, own_names[i], n) && piece[n] == '/') return -1 - i;
    }
    return 0;
}

static void add_range(struct entries *e, const struct layout *l, const struct state_range *r) {
    const struct unit *unit = &l->units[r->unit];
    const char *own = state_own_name(r->kind);
    if (own) add(e, xasprintf("%s/%s@%lld", own, unit->name, (long long)r->begin), DT_F32, r->end - r->begin);
    for (int i = 0; i < unit->count && !own; i++) {
        const struct tensor *t = &unit->tensors[i];
        struct span s = span_of(t, r->begin, r->end);
        if (s.first >= s.last) continue;
        long long offset = s.first - t->offset;
        char *name = r->kind == STATE_MASTER
                         ? xasprintf("master/%s@%lld", t->name, offset)
                         : xasprintf("state%d/%s@%lld", r->kind - STATE_OPTIMIZER, t->name, offset);
        add(e, name, DT_F32, s.last - s.first);
    }
}

static int check(const struct part_options *o, char **error) {
    if (!participant_name(o->participant))
        return disk_error(error, "\"%s\" is no name of a participant", o->participant);
    for (int i = 0; i < o->count; i++) {
        const struct state_range *r = &o->ranges[i];
        bool unit = r->unit >= 0 && r->unit < o->layout->count;
        if (!unit || r->kind < -OWN_KINDS || r->begin < 0 || r->begin > r->end ||
            r->end > o->layout->units[r->unit].n_pad)
            return disk_error(error, "%s: range %d: no elements %lld to %lld of kind %d in unit %d",
                              o->participant, i, (long long)r->begin, (long long)r->end, r->kind, r->unit);
    }
    for (int i = 0; i < o->extras;
         i++) {  // "master/..", "state<digit>.." and those of a rank's own are pieces
        const char *name = o->extra[i].name;
        if (!strncmp(name, "master/", 7) || state_own_kind(name) || o->extra[i].count < 0 ||
            (!strncmp(name, "state", 5) && isdigit((unsigned char)name[5])))
            return disk_error(error, "%s: \"%s\" cannot be the name of numbers", o->participant, name);
    }
    return 0;
}

// ---------------------------------------------------------------- the directory
static char *path_of(const char *dir, const char *participant, const char *ending) {
    return xasprintf("%s/%s%s", dir, participant, ending);
}

// RUN/checkpoints and the partial directory in it; RUN must be there.
static int make_dirs(const char *dir, char **error) {
    char *above = xstrdup(dir), *slash = strrchr(above, '/');
    if (slash) *slash = '\0';
    int rc = slash && disk_make_dir(above, error) ? -1 : disk_make_dir(dir, error);
    free(above);
    return rc;
}

// As far as that is possible: a disk that is full has no room for the reason, but in most cases for a name. Without either,
// whoever completes the checkpoint waits until nothing has moved for long.
static void leave_failed(const char *dir, const char *participant, const char *why) {
    char *path = path_of(dir, participant, ".failed");
    int fd =
        new_file_write(path, why, NEW_FILE_ON_DISK, NULL) ? disk()->open(path, O_WRONLY | O_CREAT, 0666) : -1;
    if (fd >= 0) close(fd);
    free(path);
}

bool part_file_is_there(const char *dir, const char *participant) {
    struct stat st;
    char *path = path_of(dir, participant, ".json");
    bool there = stat(path, &st) == 0;
    free(path);
    return there;
}

void part_file_refuse(const char *dir, const char *participant, const char *why) {
    if (make_dirs(dir, NULL) == 0) leave_failed(dir, participant, why);
}

// ---------------------------------------------------------------- writing
// The writer for all pieces and extras, or NULL.
static struct st_writer *open_writer(const struct part_options *o, char **error) {
    struct entries e = {0};
    for (int i = 0; i < o->count; i++) add_range(&e, o->layout, &o->ranges[i]);
    for (int i = 0; i < o->extras; i++) add(&e, xstrdup(o->extra[i].name), DT_I64, o->extra[i].count);
    char *path = path_of(o->dir, o->participant, PART_ENDING);
    struct st_writer *w = st_writer_begin(path, e.at, e.count, NEW_FILE_ON_DISK, error);
    free(path);
    for (int i = 0; i < e.count; i++) free((char *)e.at[i].name);
    free(e.at);
    return w;
}

static void *copy(const void *from, int count, size_t size) {
    void *to = xcalloc((unsigned long)count, size);
    if (count) memcpy(to, from, (size_t)count * size);
    return to;
}

struct part_file *part_file_create(const struct part_options *o, char **error) {
    if (check(o, error)) return NULL;
    struct st_writer *w = NULL;
    char *why = NULL;
    if (make_dirs(o->dir, &why) == 0) {
        // Removes what an earlier attempt of the same life left, the file too: a thread that still has it open writes to that one.
        const char *const endings[] = {".json", ".failed", PART_ENDING};
        for (int i = 0; i < 3; i++) {
            char *path = path_of(o->dir, o->participant, endings[i]);
            disk()->unlink(path);
            free(path);
        }
        w = open_writer(o, &why);
        if (!w) leave_failed(o->dir, o->participant, why);
    }
    if (!w) {
        disk_error(error, "%s", why);
        free(why);
        return NULL;
    }
    struct part_file *f = xcalloc(1, sizeof *f);
    *f = (struct part_file){.layout = o->layout,
                            .dir = xstrdup(o->dir),
                            .participant = xstrdup(o->participant),
                            .file = w,
                            .ranges = copy(o->ranges, o->count, sizeof *o->ranges),
                            .count = o->count,
                            .extra = copy(o->extra, o->extras, sizeof *o->extra),
                            .extras = o->extras};
    if (f->count) f->at = f->ranges[0].begin;
    return f;
}

int64_t part_file_bytes(const struct part_file *f) { return st_writer_bytes(f->file); }

// Past ranges that are complete.
static void advance(struct part_file *f) {
    while (f->range < f->count && f->at == f->ranges[f->range].end)
        if (++f->range < f->count) f->at = f->ranges[f->range].begin;
}

int part_file_write(struct part_file *f, int range, int64_t begin, int64_t end, const float *data) {
    if (f->error) return -1;
    if (begin == end) return 0;
    advance(f);
    if (f->range == f->count || range != f->range || begin != f->at || end < begin ||
        end > f->ranges[range].end)
        return disk_error(&f->error, "%s: elements %lld to %lld of range %d come out of order",
                          f->participant, (long long)begin, (long long)end, range);
    const struct unit *unit = &f->layout->units[f->ranges[range].unit];
    bool whole = f->ranges[range].kind < 0;
    for (int i = 0; i < (whole ? 1 : unit->count); i++) {
        struct span s = whole ? (struct span){begin, end} : span_of(&unit->tensors[i], begin, end);
        if (s.first >= s.last) continue;
        size_t bytes = (size_t)(s.last - s.first) * sizeof *data;
        if (st_writer_append(f->file, data + (s.first - begin), bytes))
            return disk_error(&f->error, "%s", st_writer_error(f->file));
    }
    f->at = end;
    return 0;
}

static int write_sidecar(struct part_file *f, const struct st_written *w) {
    char hash[17], *name = xasprintf("%s" PART_ENDING, f->participant);
    char *path = path_of(f->dir, f->participant, ".json");
    cJSON *root = cJSON_CreateObject();
    json_put_text(root, "file", name);
    json_put(root, "bytes", (double)w->bytes);
    hex64(hash, w->xxh64);
    json_put_text(root, "xxh64", hash);
    char *text = cJSON_PrintUnformatted(root);
    int rc = new_file_write(path, text, NEW_FILE_ON_DISK, &f->error);
    cJSON_free(text);
    cJSON_Delete(root);
    free(path);
    free(name);
    return rc;
}

static void destroy(struct part_file **at) {
    struct part_file *f = *at;
    st_writer_discard(&f->file);
    free(f->dir);
    free(f->participant);
    free(f->error);
    free(f->ranges);
    free(f->extra);
    free(f);
    *at = NULL;
}

int part_file_finish(struct part_file **at, char **error) {
    struct part_file *f = *at;
    struct st_written written;
    advance(f);
    if (!f->error && f->range < f->count)
        disk_error(&f->error, "%s: range %d ends at element %lld, not at %lld", f->participant, f->range,
                   (long long)f->at, (long long)f->ranges[f->range].end);
    for (int i = 0; i < f->extras && !f->error; i++)  // errors are st_writer_end's to tell
        st_writer_append(f->file, f->extra[i].values, (size_t)f->extra[i].count * sizeof *f->extra[i].values);
    int rc = f->error ? -1 : st_writer_end(&f->file, &written, &f->error);
    if (rc == 0) rc = write_sidecar(f, &written);
    if (rc == 0) {
        destroy(at);
        return 0;
    }
    disk_error(error, "%s", f->error);
    part_file_discard(at, *error);
    return -1;
}

void part_file_discard(struct part_file **at, const char *why) {
    struct part_file *f = *at;
    if (!f) return;
    char *path = path_of(f->dir, f->participant, PART_ENDING);
    disk()->unlink(path);
    free(path);
    leave_failed(f->dir, f->participant, why);
    destroy(at);
}
