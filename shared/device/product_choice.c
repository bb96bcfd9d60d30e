#include "shared/device/product_choice.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/core/error.h"
#include "shared/core/json.h"
#include "shared/device/product_table.h"

#define BESIDE_PROGRAM "starring-products.json"

char *products_beside_program(void) {
    char program[4096];
    ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    program[n > 0 ? n : 0] = 0;
    char *slash = strrchr(program, '/');
    if (slash) *slash = 0;
    return xasprintf("%s/" BESIDE_PROGRAM, slash ? program : ".");
}

// The table that c asks for; NULL: none. malloc'd.
static char *path_of(const struct config *c) {
    if (c->device != DEVICE_CUDA || !strcmp(c->products, "none")) return NULL;
    if (strcmp(c->products, "auto")) return xstrdup(c->products);
    char *beside = products_beside_program();
    if (access(beside, F_OK) == 0) return beside;
    free(beside);
    return NULL;
}

// The table, empty where path is NULL; -1 after fail() said what is wrong with the file, and the key that asks for it.
static int read_table(const char *path, struct product_table *out) {
    *out = (struct product_table){0};
    if (!path || product_table_read(path, out) == 0) return 0;
    return fail(
        "cuda.products: %s cannot be used: measure one with `starring bench "
        "tune`, or run without it (--set cuda.products=none)",
        path);
}

int products_check(const struct config *c) {
    struct product_table table;
    char *path = path_of(c);
    int rc = read_table(path, &table);
    product_table_free(&table);
    free(path);
    return rc;
}

static int give(const struct product_table *t, struct device *dev, struct products *out) {
    struct device_facts facts;
    if (dev_facts(dev, &facts)) return fail("products: %s", dev_error(dev));
    struct product_choice *choices = xcalloc((size_t)t->count + 1, sizeof *choices);
    for (int i = 0; i < t->count; i++) {
        const struct product_entry *e = &t->entries[i];
        if (strcmp(e->device, facts.name) || e->sm != facts.sm_version || e->library != facts.blas_version)
            continue;
        choices[out->choices++] = e->choice;
        out->hash += product_entry_hash(e);  // in whatever order they stand
    }
    out->ignored = t->count - out->choices;
    int rc = dev_choose_products(dev, choices, out->choices);
    free(choices);
    return rc ? fail("products: out of memory") : 0;
}

int products_give(const struct config *c, struct device *dev, struct products *out) {
    struct product_table table;
    *out = (struct products){.path = path_of(c)};
    int rc = read_table(out->path, &table);
    if (!rc && out->path) rc = give(&table, dev, out);
    product_table_free(&table);
    return rc;
}

void products_free(struct products *p) {
    free(p->path);
    *p = (struct products){0};
}

void products_say(const struct products *p) {
    if (!p->path) return;
    if (p->choices == 0 && p->ignored > 0)
        warn(
            "products: %s has none for this GPU and version of cuBLASLt: all %d are of others and ignored; "
            "measure with `starring bench tune`",
            p->path, p->ignored);
    else if (p->ignored > 0)
        info(
            "products: %s, %d algorithms chosen by measurement; %d more are of "
            "other devices or versions of cuBLASLt and ignored",
            p->path, p->choices, p->ignored);
    else
        info("products: %s, %d algorithms chosen by measurement", p->path, p->choices);
}

// A hash travels as sums of its 16-bit pieces and of their squares: with up to 2^16 ranks these are below
// 2^48 and 2^53, so exact as doubles, and N times the sum of squares equals the square of the sum just when
// all pieces are equal (Cauchy-Schwarz).
#define PIECES 4

int products_compare(const struct config *c, struct topology *t, const struct products *p) {
    double sums[1 + 2 * PIECES] = {0};
    bool equal = true;
    if (t->size < 2) return 0;
    for (int i = 0; i < PIECES && c->device == DEVICE_CUDA; i++) {
        double piece = (double)(p->hash >> 16 * i & 0xffff);
        sums[1 + i] = piece;
        sums[1 + PIECES + i] = piece * piece;
    }
    sums[0] = c->device == DEVICE_CUDA;
    if (topology_sum(t, sums, 1 + 2 * PIECES)) return -1;
    for (int i = 0; i < PIECES; i++)
        equal &= (unsigned __int128)sums[0] * (uint64_t)sums[1 + PIECES + i] ==
                 (unsigned __int128)(uint64_t)sums[1 + i] * (uint64_t)sums[1 + i];
    if (equal) return 0;
    char host[64] = "?", hash[32] = "";
    gethostname(host, sizeof host - 1);
    if (p->hash) snprintf(hash, sizeof hash, " (%016llx)", (unsigned long long)p->hash);
    return fail(
        "workers choose the algorithms of their matrix products differently: worker %d on %s "
        "has %d from %s%s; give all of them the same file (cuda.products=FILE) on equal "
        "GPUs with equal versions of cuBLASLt, or none (cuda.products=none)",
        t->rank, host, p->choices, p->path ? p->path : "no table", hash);
}

struct cJSON *products_json(struct device *dev, const struct products *p) {
    int count = dev_products(dev, NULL, 0), of[4] = {0};
    char hash[20];
    if (dev_host_memory(dev)) return NULL;
    struct product_use *uses = xcalloc((size_t)count + 1, sizeof *uses);
    dev_products(dev, uses, count);
    for (int i = 0; i < count; i++) of[uses[i].source]++;
    free(uses);
    cJSON *o = cJSON_CreateObject();
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)p->hash);
    json_put_text(o, "file", p->path);
    json_put_text(o, "hash", p->choices ? hash : NULL);
    cJSON_AddNumberToObject(o, "ignored", p->ignored);
    cJSON_AddNumberToObject(o, "shapes", count - of[PRODUCT_ABSENT]);
    cJSON_AddNumberToObject(o, "chosen", of[PRODUCT_CHOSEN]);
    cJSON_AddNumberToObject(o, "unknown", of[PRODUCT_FIRST]);
    cJSON_AddNumberToObject(o, "refused", of[PRODUCT_REFUSED]);
    return o;
}

void products_print(FILE *f, const char *heading, const struct cJSON *products) {
    const char *file = json_text(products, "file", NULL);
    if (!file) return;
    fprintf(f,
            "%s%.0f of %.0f shapes by measurement, %.0f not in the table, %.0f "
            "refused, %.0f entries of other GPUs or versions; %s\n",
            heading, json_number(products, "chosen"), json_number(products, "shapes"),
            json_number(products, "unknown"), json_number(products, "refused"),
            json_number(products, "ignored"), file);
}
