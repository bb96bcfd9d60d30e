#include "shared/state/part_file.h"

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
    enum dtype dtype;
    char *dir, *participant, *error;
    struct st_writer *file;
    struct state_range *ranges;
    int count;
    struct part_extra *extra;  // the caller owns the names; they are not used after creation
    int extras;
    int range;   // range being written
    int64_t at;  // next element of that range
};

// The overlap of [begin, end) with a tensor, in elements of the unit; empty where first >= last.
struct span {
    int64_t first, last;
};

static struct span span_of(const struct tensor *t, int64_t begin, int64_t end) {
    int64_t over = t->offset + t->numel;
    return (struct span){t->offset > begin ? t->offset : begin, over < end ? over : end};
}

// ---------------------------------------------------------------- names
static const struct {
    int kind;
    const char *name;
} names[] = {{STATE_ERROR, "error"}, {STATE_MASTER, "master"}, {STATE_WEIGHTS, "weights"}};
#define NAMES (sizeof names / sizeof *names)

static bool kind_possible(int kind) {
    return (kind > STATE_OWN - STATE_OPTIMIZER - STATE_OPTIMIZER_MOST &&
            kind < STATE_OPTIMIZER + STATE_OPTIMIZER_MOST) ||
           kind == STATE_WEIGHTS;
}

const char *state_name(char text[24], int kind) {
    for (size_t i = 0; i < NAMES; i++)
        if (names[i].kind == kind) return names[i].name;
    if (kind == STATE_OWN)
        snprintf(text, 24, "own_master");
    else if (kind < STATE_OWN)
        snprintf(text, 24, "own_state%d", STATE_OWN - kind - STATE_OPTIMIZER);
    else
        snprintf(text, 24, "state%d", kind - STATE_OPTIMIZER);
    return text;
}

int state_kind_of(const char *name, const char **rest) {
    const char *slash = strchr(name, '/');
    size_t n = slash ? (size_t)(slash - name) : 0;
    char text[24];
    *rest = slash ? slash + 1 : "";
    for (size_t i = 0; i < NAMES && n; i++)
        if (strlen(names[i].name) == n && strncmp(names[i].name, name, n) == 0) return names[i].kind;
    bool own = n > 4 && !strncmp(name, "own_", 4);
    const char *of = own ? name + 4 : name;
    bool master = own && n == 10 && !strncmp(of, "master", 6);
    if (!master && (strncmp(of, "state", 5) != 0 || n < 6)) return STATE_NONE;
    int kind = master ? STATE_MASTER : STATE_OPTIMIZER + atoi(of + 5);
    if (kind >= STATE_OPTIMIZER + STATE_OPTIMIZER_MOST) return STATE_NONE;
    if (own) kind = STATE_OWN - kind;
    // Accepts only the form written here, without sign, blanks and leading zeros.
    return strlen(state_name(text, kind)) == n && strncmp(text, name, n) == 0 ? kind : STATE_NONE;
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

static void add_range(struct entries *e, const struct part_options *o, const struct state_range *r) {
    const struct unit *unit = &o->layout->units[r->unit];
    enum dtype dtype = r->kind == STATE_WEIGHTS ? o->dtype : DT_F32;
    char text[24];
    const char *kind = state_name(text, r->kind);
    if (r->kind < 0)
        add(e, xasprintf("%s/%s@%lld", kind, unit->name, (long long)r->begin), dtype, r->end - r->begin);
    for (int i = 0; i < unit->count && r->kind >= 0; i++) {
        const struct tensor *t = &unit->tensors[i];
        struct span s = span_of(t, r->begin, r->end);
        if (s.first >= s.last) continue;
        add(e, xasprintf("%s/%s@%lld", kind, t->name, (long long)(s.first - t->offset)), dtype,
            s.last - s.first);
    }
}

static int check(const struct part_options *o, char **error) {
    if (!participant_name(o->participant))
        return disk_error(error, "\"%s\" is not a valid name of a participant", o->participant);
    for (int i = 0; i < o->count; i++) {
        const struct state_range *r = &o->ranges[i];
        bool unit = r->unit >= 0 && r->unit < o->layout->count;
        if (!unit || !kind_possible(r->kind) || r->begin < 0 || r->begin > r->end ||
            r->end > o->layout->units[r->unit].n_pad)
            return disk_error(error, "%s: range %d: no elements %lld to %lld of kind %d in unit %d",
                              o->participant, i, (long long)r->begin, (long long)r->end, r->kind, r->unit);
    }
    for (int i = 0; i < o->extras; i++) {
        const char *name = o->extra[i].name, *rest;
        if (state_kind_of(name, &rest) != STATE_NONE || o->extra[i].count < 0)
            return disk_error(error, "%s: \"%s\" cannot be the name of numbers", o->participant, name);
    }
    return 0;
}

// ---------------------------------------------------------------- the directory
static char *path_of(const char *dir, const char *participant, const char *ending) {
    return xasprintf("%s/%s%s", dir, participant, ending);
}

// Creates RUN/checkpoints and the partial directory in it; RUN must exist.
static int make_dirs(const char *dir, char **error) {
    char *above = xstrdup(dir), *slash = strrchr(above, '/');
    if (slash) *slash = '\0';
    int rc = slash && disk_make_dir(above, error) ? -1 : disk_make_dir(dir, error);
    free(above);
    return rc;
}

// Writes NAME.failed if possible. A full disk has no room for the reason, but usually for an empty file. If even that
// fails, the committing process waits until its timeout.
static void leave_failed(const char *dir, const char *participant, const char *why) {
    char *path = path_of(dir, participant, ".failed");
    int fd =
        new_file_write(path, why, NEW_FILE_ON_DISK, NULL) ? disk()->open(path, O_WRONLY | O_CREAT, 0666) : -1;
    if (fd >= 0) close(fd);
    free(path);
}

void part_file_refuse(const char *dir, const char *participant, const char *why) {
    if (make_dirs(dir, NULL) == 0) leave_failed(dir, participant, why);
}

// ---------------------------------------------------------------- writing
// Opens the writer for all pieces and extras, or returns NULL.
static struct st_writer *open_writer(const struct part_options *o, char **error) {
    struct entries e = {0};
    bool weights = o->count && o->ranges[0].kind == STATE_WEIGHTS;
    for (int i = 0; i < o->count; i++) add_range(&e, o, &o->ranges[i]);
    for (int i = 0; i < o->extras; i++) add(&e, xstrdup(o->extra[i].name), DT_I64, o->extra[i].count);
    char *path = path_of(o->dir, o->participant, PART_ENDING);
    struct st_writer *w =
        st_writer_begin(path, e.at, e.count, weights ? NEW_FILE_WHOLE : NEW_FILE_ON_DISK, error);
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
        // Remove what an earlier attempt of this start left, also the data file: a thread that still has it open
        // writes to the deleted file.
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
                            .dtype = o->dtype,
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

// Skips ranges that are complete.
static void advance(struct part_file *f) {
    while (f->range < f->count && f->at == f->ranges[f->range].end)
        if (++f->range < f->count) f->at = f->ranges[f->range].begin;
}

int part_file_write(struct part_file *f, int range, int64_t begin, int64_t end, const void *data) {
    if (f->error) return -1;
    if (begin == end) return 0;
    advance(f);
    if (f->range == f->count || range != f->range || begin != f->at || end < begin ||
        end > f->ranges[range].end)
        return disk_error(&f->error, "%s: elements %lld to %lld of range %d come out of order",
                          f->participant, (long long)begin, (long long)end, range);
    const struct unit *unit = &f->layout->units[f->ranges[range].unit];
    bool whole = f->ranges[range].kind < 0;
    size_t size = dtype_size(f->ranges[range].kind == STATE_WEIGHTS ? f->dtype : DT_F32);
    for (int i = 0; i < (whole ? 1 : unit->count); i++) {
        struct span s = whole ? (struct span){begin, end} : span_of(&unit->tensors[i], begin, end);
        if (s.first >= s.last) continue;
        const char *from = (const char *)data + (size_t)(s.first - begin) * size;
        if (st_writer_append(f->file, from, (size_t)(s.last - s.first) * size))
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
    for (int i = 0; i < f->extras && !f->error; i++)  // st_writer_end reports errors
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
