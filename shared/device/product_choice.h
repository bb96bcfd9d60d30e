// Which algorithms a run's matrix products take on a GPU (cuda.products): those of a measured table, or the
// library's first. The table is read before the first step and never while the run goes on, so its bits
// repeat; workers compare what applies to their devices before they begin, so all of them multiply alike.
#ifndef STARRING_SHARED_DEVICE_PRODUCT_CHOICE_H
#define STARRING_SHARED_DEVICE_PRODUCT_CHOICE_H

#include <stdio.h>

#include "kernels/backend.h"
#include "shared/config/config.h"
#include "shared/core/topology.h"

struct cJSON;

// The choices that a rank's device was given.
struct products {
    char *path;     // of the table; NULL: there is none
    uint64_t hash;  // of the choices that apply to this device and library; 0: none does
    int choices;    // that apply
    int ignored;    // entries of another device, compute capability or version of cuBLASLt
};

// The table that "auto" takes if it is there: starring-products.json in the program's folder. malloc'd.
char *products_beside_program(void);
// Reads c's table, if it has one, and checks it: before anything starts. 0, or -1 after fail(). Other devices
// than cuda: 0.
int products_check(const struct config *c);
// Gives the device the table's choices; before its first product. 0, or -1 after fail().
int products_give(const struct config *c, struct device *dev, struct products *out);
void products_free(struct products *p);
// A line that names the table; nothing when there is none.
void products_say(const struct products *p);
// Workers whose devices were given different choices would end in bits that no machine gives alone: -1 on
// each of them after fail(). Every rank of the topology calls it.
int products_compare(const struct config *c, struct topology *t, const struct products *p);
// {file, hash, ignored, shapes, chosen, unknown, refused} of the products so far: file and hash null without
// a table; unknown to the table; refused by the library. NULL: not on a GPU. The caller owns it.
struct cJSON *products_json(struct device *dev, const struct products *p);
// One line for people from that document, behind a heading; nothing when there is no table.
void products_print(FILE *f, const char *heading, const struct cJSON *products);

#endif
