// Tables of measured products: which of cuBLASLt's algorithms a product takes on one kind of GPU with one
// version of the library. `starring bench tune` writes them, runs read them (shared/device/product_choice.h).
//
//     {"format": "starring products", "version": 1, "program": "starring bench tune ..",
//      "products": [{"device": "NVIDIA H200", "sm": 90, "cublaslt": 130000, "dtype": "bf16", "m": ..,
//                    .., "algorithm": "0000000000000042 ..", "check": "..",
//                    "rank": 3, "first_ms": .., "best_ms": ..}, ..]}
//
// One file may hold products of several devices and versions. check is the first 16 digits of the SHA-256 of
// what precedes it in the entry: the library trusts the words of an algorithm, so a table that was edited, or
// damaged, is refused as a whole.
#ifndef STARRING_SHARED_DEVICE_PRODUCT_TABLE_H
#define STARRING_SHARED_DEVICE_PRODUCT_TABLE_H

#include <stddef.h>

#include "kernels/dtype.h"
#include "kernels/products.h"

#define PRODUCT_DEVICE_BYTES 256

struct product_entry {
    struct product_choice choice;
    char device[PRODUCT_DEVICE_BYTES];  // its name
    int sm;                             // 90: compute capability 9.0
    size_t library;                     // cuBLASLt's version
    // As measured; for people, and not part of the check.
    int rank;  // of the algorithm in the library's order; 0: the first heuristic
    double first_s, best_s;
};

struct product_table {
    struct product_entry *entries;
    int count;
};

// All of the file. 0; -1 after fail() named the file, and the entry and member that are wrong. Either way the
// caller frees out.
int product_table_read(const char *path, struct product_table *out);
// Whole or not at all. 0, or -1 after fail().
int product_table_write(const char *path, const struct product_table *t);
// Whether the file can be written, before time is spent on what is to be in it. 0, or -1 after fail().
int product_table_writable(const char *path);
// Puts a copy of e in the place of the entry for the same product, device and version, or behind the last.
void product_table_put(struct product_table *t, const struct product_entry *e);
void product_table_free(struct product_table *t);

// An entry's check as a number: equal for equal products, devices, versions and algorithms.
uint64_t product_entry_hash(const struct product_entry *e);
// "none", "gelu", "gelu_grad", "bias_grad"
const char *product_epilogue_name(int epilogue);

#endif
