#include "shared/state/checkpoint_read.h"

#include <ctype.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shared/core/error.h"
#include "shared/core/file.h"
#include "shared/core/json.h"
#include "shared/hf/safetensors.h"
#include "shared/state/checkpoint.h"
#include "shared/state/manifest.h"

struct part {
    struct st_file *file;
    const struct manifest_file *said;
    char participant[PART_NAME_MAX];
    pthread_mutex_t mutex;  // guards the fields below
    enum { UNREAD, GOOD, BAD } state;
};

// Elements [offset, offset + data->numel) of a logical tensor.
struct piece {
    int kind;
    char tensor[TENSOR_NAME_MAX];
    int64_t offset;
    const struct st_tensor *data;
    struct part *part;
};

struct checkpoint {
    char *path;
    struct manifest manifest;
    enum dtype dtype;  // of its pieces, except a rank's own state
    struct part *parts;
    struct piece *pieces;  // by kind, tensor, offset; those of one tensor start at 0, without holes
    int count;
    pthread_mutex_t mutex;        // guards fitted
    const struct layout *fitted;  // the last layout that it fits
};

static int64_t end_of(const struct piece *p) { return p->offset + p->data->numel; }

static int by_tensor(const struct piece *x, const struct piece *y) {
    return x->kind != y->kind ? (x->kind > y->kind) - (x->kind < y->kind) : strcmp(x->tensor, y->tensor);
}

static int by_place(const void *a, const void *b) {
    const struct piece *x = a, *y = b;
    int order = by_tensor(x, y);
    return order ? order : (x->offset > y->offset) - (x->offset < y->offset);
}

// ---------------------------------------------------------------- opening
// Returns a number as we write it, without sign, blanks and leading zeros; -1: no such number.
static int64_t plain_number(const char *text, const char **after) {
    size_t n = strspn(text, "0123456789");
    if (n == 0 || n > 15 || (text[0] == '0' && n > 1)) return -1;
    *after = text + n;
    return strtoll(text, NULL, 10);
}

// Return how many kinds of values the checkpoint holds per tensor, and the i-th kind.
static int kinds(const struct checkpoint *c) {
    return c->manifest.weights ? 1 : STATE_OPTIMIZER + c->manifest.states;
}
static int kind_at(const struct checkpoint *c, int i) { return c->manifest.weights ? STATE_WEIGHTS : i; }
static bool holds(const struct checkpoint *c, int kind) {
    return c->manifest.weights ? kind == STATE_WEIGHTS : kind >= 0 && kind < kinds(c);
}

// Adds the tensor to the pieces, unless it is an array of numbers.
static int add_piece(struct checkpoint *c, struct part *part, const struct st_tensor *t) {
    const char *rest, *path = st_path(part->file), *after = "";
    int kind = state_kind_of(t->name, &rest);
    if (kind == STATE_NONE && t->dtype == DT_I64 && t->dims == 1) return 0;
    if (kind < 0 && t->dtype == DT_F32 && t->dims == 1) return 0;
    if (kind < 0 || kind == STATE_NONE)
        return fail("%s: tensor %s: is neither a piece of the state nor an array of I64", path, t->name);
    if (!holds(c, kind) && (c->manifest.weights || kind == STATE_WEIGHTS))
        return fail("%s: tensor %s: the manifest lists %s", path, t->name,
                    c->manifest.weights ? "weights alone" : "no weights");
    if (!holds(c, kind))
        return fail("%s: tensor %s: the manifest lists %d optimizer states", path, t->name,
                    c->manifest.states);
    if (t->dtype != (int)c->dtype || t->dims != 1 || t->numel < 1)
        return fail("%s: tensor %s: is no piece of %s elements but %s in %d dimensions", path, t->name,
                    c->manifest.weights ? c->manifest.dtype : "F32", t->type_name, t->dims);
    const char *at = strrchr(rest, '@');
    int64_t offset = at ? plain_number(at + 1, &after) : -1;
    if (offset < 0 || *after || at == rest || at - rest >= TENSOR_NAME_MAX)
        return fail("%s: tensor %s: its name is not KIND/TENSOR@ELEMENT", path, t->name);
    struct piece *p = &c->pieces[c->count++];
    *p = (struct piece){.kind = kind, .offset = offset, .data = t, .part = part};
    snprintf(p->tensor, sizeof p->tensor, "%.*s", (int)(at - rest), rest);
    return 0;
}

static int open_part(struct checkpoint *c, int i) {
    struct part *p = &c->parts[i];
    p->said = &c->manifest.files[i];
    snprintf(p->participant, sizeof p->participant, "%.*s",
             (int)(strlen(p->said->name) - strlen(PART_ENDING)), p->said->name);
    char *path = xasprintf("%s/%s", c->path, p->said->name);
    struct stat st;
    int rc = 0;
    if (stat(path, &st) == 0 && st.st_size != p->said->bytes)
        rc = fail("%s: has %lld bytes, the manifest says %lld: it is cut short or another file", path,
                  (long long)st.st_size, (long long)p->said->bytes);
    const char *host = manifest_left_on(&c->manifest, i);
    if (rc == 0 && host && access(path, F_OK))
        rc = fail(
            "%s: is not here: an earlier version left it on %s, in a folder of that name: copy it from there",
            path, host);
    if (rc == 0 && !(p->file = st_open(path))) rc = -1;
    free(path);
    if (rc) return -1;
    int n = st_count(p->file);
    c->pieces = xrealloc(c->pieces, (unsigned long)(c->count + n) * sizeof *c->pieces);
    for (int k = 0; k < n; k++)
        if (add_piece(c, p, st_at(p->file, k))) return -1;
    return 0;
}

// Checks for holes and overlaps, as far as possible without the model's sizes.
static int check_pieces(const struct checkpoint *c) {
    for (int i = 0; i < c->count; i++) {
        const struct piece *p = &c->pieces[i], *before = i ? p - 1 : NULL;
        if (before && by_tensor(before, p) != 0) before = NULL;
        int64_t expected = before ? end_of(before) : 0;
        if (p->offset < expected)
            return fail("%s: tensor %s: overlaps %s in %s", st_path(p->part->file), p->data->name,
                        before->data->name, before->part->said->name);
        if (p->offset > expected)
            return fail("%s: tensor %s: elements %lld to %lld before it are in no file",
                        st_path(p->part->file), p->data->name, (long long)expected, (long long)p->offset);
    }
    return 0;
}

// Refuses a directory that is named after another step: --resume latest would choose it wrongly, or a resumed run would
// remove it as a later one.
static int check_name(const char *path, const struct manifest *m) {
    int64_t named = checkpoint_named(path);
    if (named < 0 || named == m->train.step) return 0;
    return fail(
        "%s: holds the state after step %lld, not of the step in its name: give it the name step-%lld", path,
        (long long)m->train.step, (long long)m->train.step);
}

// Masters and states are fp32, weights of the run's type.
static int find_dtype(struct checkpoint *c) {
    static const enum dtype types[] = {DT_F32, DT_BF16, DT_F16};
    c->dtype = DT_F32;
    if (!c->manifest.weights) return 0;
    for (int i = 0; i < 3; i++)
        if (strcmp(dtype_name(types[i]), c->manifest.dtype) == 0) {
            c->dtype = types[i];
            return 0;
        }
    return fail("%s: \"dtype\" is no type of weights: \"%.20s\"", c->path, c->manifest.dtype);
}

struct checkpoint *checkpoint_open(const char *path) {
    struct checkpoint *c = xcalloc(1, sizeof *c);
    c->path = xstrdup(path);
    pthread_mutex_init(&c->mutex, NULL);
    int rc = manifest_read(path, &c->manifest);
    if (rc == 0) rc = check_name(path, &c->manifest);
    if (rc == 0) rc = find_dtype(c);
    c->parts = xcalloc((unsigned long)c->manifest.count, sizeof *c->parts);
    for (int i = 0; i < c->manifest.count; i++) pthread_mutex_init(&c->parts[i].mutex, NULL);
    for (int i = 0; rc == 0 && i < c->manifest.count; i++) rc = open_part(c, i);
    if (rc == 0 && c->count) qsort(c->pieces, (size_t)c->count, sizeof *c->pieces, by_place);
    if (rc == 0) rc = check_pieces(c);
    if (rc) checkpoint_close(&c);
    return c;
}

void checkpoint_close(struct checkpoint **at) {
    struct checkpoint *c = *at;
    if (!c) return;
    for (int i = 0; i < c->manifest.count; i++) {
        st_close(&c->parts[i].file);
        pthread_mutex_destroy(&c->parts[i].mutex);
    }
    pthread_mutex_destroy(&c->mutex);
    manifest_free(&c->manifest);
    free(c->parts);
    free(c->pieces);
    free(c->path);
    free(c);
    *at = NULL;
}

const char *checkpoint_path(const struct checkpoint *c) { return c->path; }
bool checkpoint_is_weights(const struct checkpoint *c) { return c->manifest.weights; }
double checkpoint_seconds(const struct checkpoint *c) { return c->manifest.seconds; }
const char *checkpoint_seal(const struct checkpoint *c) { return manifest_seal(&c->manifest); }
const struct train_state *checkpoint_train(const struct checkpoint *c) { return &c->manifest.train; }
const char *checkpoint_dtype(const struct checkpoint *c) { return c->manifest.dtype; }
const char *checkpoint_optimizer(const struct checkpoint *c) { return c->manifest.optimizer; }
int checkpoint_states(const struct checkpoint *c) { return c->manifest.states; }
const char *checkpoint_identity(const struct checkpoint *c, const char *key) {
    return json_text(c->manifest.identity, key, NULL);
}
const struct cJSON *checkpoint_identity_json(const struct checkpoint *c) { return c->manifest.identity; }

// ---------------------------------------------------------------- the model's tensors
// Finds the pieces of a logical tensor; *count receives 0 if there are none.
static const struct piece *pieces_of(const struct checkpoint *c, int kind, const char *tensor, int *count) {
    struct piece key = {.kind = kind};
    snprintf(key.tensor, sizeof key.tensor, "%s", tensor);
    int low = 0, high = c->count;
    while (low < high) {
        int middle = low + (high - low) / 2;
        if (by_place(&c->pieces[middle], &key) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    *count = 0;
    while (low + *count < c->count && by_tensor(&c->pieces[low + *count], &key) == 0) ++*count;
    return &c->pieces[low];
}

// Checks that the checkpoint has all elements of the model's tensor, and no others.
static int check_tensor(const struct checkpoint *c, int kind, const struct tensor *t, int *count) {
    char text[24];
    const struct piece *p = pieces_of(c, kind, t->name, count);
    if (*count == 0)
        return fail("%s: no file holds %s/%s of this model", c->path, state_name(text, kind), t->name);
    const struct piece *last = p + *count - 1;
    if (end_of(last) == t->numel) return 0;
    return fail("%s: tensor %s: ends at element %lld, the model's %s has %lld", st_path(last->part->file),
                last->data->name, (long long)end_of(last), t->name, (long long)t->numel);
}

static bool in_layout(const struct layout *l, const char *tensor) {
    for (int u = 0; u < l->count; u++)
        for (int i = 0; i < l->units[u].count; i++)
            if (strcmp(l->units[u].tensors[i].name, tensor) == 0) return true;
    return false;
}

static int fits(const struct checkpoint *c, const struct layout *l) {
    int found = 0, count;
    for (int k = 0; k < kinds(c); k++)
        for (int u = 0; u < l->count; u++)
            for (int i = 0; i < l->units[u].count; i++) {
                if (check_tensor(c, kind_at(c, k), &l->units[u].tensors[i], &count)) return -1;
                found += count;
            }
    for (int i = 0; found < c->count && i < c->count; i++)
        if (!in_layout(l, c->pieces[i].tensor))
            return fail("%s: tensor %s: this model has no %s", st_path(c->pieces[i].part->file),
                        c->pieces[i].data->name, c->pieces[i].tensor);
    return 0;
}

int checkpoint_fits(struct checkpoint *c, const struct layout *l) {
    pthread_mutex_lock(&c->mutex);
    int rc = c->fitted == l ? 0 : fits(c, l);
    if (rc == 0) c->fitted = l;
    pthread_mutex_unlock(&c->mutex);
    return rc;
}

// ---------------------------------------------------------------- values
// Compares the file's bytes with the manifest's hash, once.
static int verify(const struct checkpoint *c, struct part *p) {
    pthread_mutex_lock(&p->mutex);
    if (p->state == UNREAD) p->state = st_hash(p->file) == p->said->xxh64 ? GOOD : BAD;
    int rc = p->state == GOOD ? 0 : -1;
    pthread_mutex_unlock(&p->mutex);
    if (rc == 0) return 0;
    char *older = checkpoint_older(c->path);
    fail("%s: is damaged: its bytes do not have the xxh64 %016" PRIx64 " that the manifest says%s%s",
         st_path(p->file), p->said->xxh64, older ? "; the one before it: --resume " : "", older ? older : "");
    free(older);
    return -1;
}

int checkpoint_verify(struct checkpoint *c) {
    int rc = 0;
    for (int i = 0; i < c->manifest.count && rc == 0; i++) rc = verify(c, &c->parts[i]);
    return rc;
}

// Elements [first, last) of a logical tensor, of the checkpoint's type.
static int read_tensor(const struct checkpoint *c, int kind, const struct tensor *t, int64_t first,
                       int64_t last, char *out) {
    int count;
    size_t size = dtype_size(c->dtype);
    if (check_tensor(c, kind, t, &count)) return -1;
    const struct piece *p = pieces_of(c, kind, t->name, &count);
    while (end_of(p) <= first) p++;
    for (; first < last; p++) {
        int64_t until = end_of(p) < last ? end_of(p) : last;
        size_t bytes = (size_t)(until - first) * size;
        if (verify(c, p->part)) return -1;
        memcpy(out, (const char *)p->data->data + (size_t)(first - p->offset) * size, bytes);
        out += bytes;
        first = until;
    }
    return 0;
}

static int read_unit(struct checkpoint *c, const struct layout *l, int unit, int kind, int64_t begin,
                     int64_t end, char *out) {
    size_t size = dtype_size(c->dtype);
    if (checkpoint_fits(c, l)) return -1;
    const struct unit *of = &l->units[unit];
    int64_t at = begin;  // out is filled up to this element
    for (int i = 0; i < of->count; i++) {
        const struct tensor *t = &of->tensors[i];
        int64_t first = t->offset > begin ? t->offset : begin, over = t->offset + t->numel;
        int64_t last = over < end ? over : end;
        if (first >= last) continue;
        memset(out + (size_t)(at - begin) * size, 0, (size_t)(first - at) * size);
        if (read_tensor(c, kind, t, first - t->offset, last - t->offset,
                        out + (size_t)(first - begin) * size))
            return -1;
        at = last;
    }
    memset(out + (size_t)(at - begin) * size, 0, (size_t)(end - at) * size);
    return 0;
}

int checkpoint_read(struct checkpoint *c, const struct layout *l, int unit, int kind, int64_t begin,
                    int64_t end, float *out) {
    if (c->manifest.weights)
        return fail("%s: is a snapshot of the weights: it has neither masters nor optimizer states", c->path);
    if (!holds(c, kind))
        return fail("%s: has %d optimizer states, state %d is asked for", c->path, c->manifest.states,
                    kind - STATE_OPTIMIZER);
    return read_unit(c, l, unit, kind, begin, end, (char *)out);
}

int checkpoint_weights(struct checkpoint *c, const struct layout *l, int unit, void *out) {
    if (!c->manifest.weights) return fail("%s: is no snapshot of the weights", c->path);
    return read_unit(c, l, unit, STATE_WEIGHTS, 0, l->units[unit].n_pad, out);
}

static int extra(struct checkpoint *c, const char *participant, const char *name, int64_t *out, int count,
                 bool alone) {
    for (int i = 0; i < c->manifest.count; i++) {
        struct part *p = &c->parts[i];
        if (participant && strcmp(participant, p->participant) != 0) continue;
        // Verify even if the name is not found: the name itself may be damaged.
        if (!alone && verify(c, p)) return -1;
        const char *rest;
        const struct st_tensor *t = st_find(p->file, name);
        if (!t || state_kind_of(name, &rest) != STATE_NONE) continue;
        if (t->numel != count)
            return fail("%s: %s: has %lld numbers, not %d", st_path(p->file), name, (long long)t->numel,
                        count);
        if (out) memcpy(out, t->data, (size_t)count * sizeof *out);
        return 0;
    }
    return 1;
}

int checkpoint_extra(struct checkpoint *c, const char *participant, const char *name, int64_t *out,
                     int count) {
    return extra(c, participant, name, out, count, false);
}

int checkpoint_extra_alone(struct checkpoint *c, const char *participant, const char *name, int64_t *out,
                           int count) {
    return extra(c, participant, name, out, count, true);
}

int checkpoint_own(struct checkpoint *c, int kind, int worker, int workers, const struct unit *unit,
                   float *out) {
    char who[32], name[TENSOR_NAME_MAX + 32], text[24];
    struct part *part = NULL;
    int count = 0;
    snprintf(who, sizeof who, "worker-%d", worker);
    snprintf(name, sizeof name, "%s/%s@0", state_name(text, kind), unit->name);
    for (int i = 0; i < c->manifest.count; i++) {
        count += !strncmp(c->parts[i].participant, "worker-", 7);
        if (!strcmp(c->parts[i].participant, who)) part = &c->parts[i];
    }
    if (!part || count != workers) return 1;
    if (verify(c, part)) return -1;
    const struct st_tensor *t = st_find(part->file, name);
    if (!t || t->dtype != DT_F32 || t->numel != unit->n_pad) return 1;
    return out ? st_to_f32(t, 0, t->numel, out) : 0;
}
