// The matrix products that a GPU has been asked for, the algorithm that each takes, and measuring others.
// Plain data: the device knows no files, and the tables of choices (shared/device/product_choice.h) know no
// cuBLASLt.
//
// Bits    Each algorithm adds in an order of its own. The bits therefore depend on the table of choices, as
//         they do on the library's version. During a run nothing is measured and no choice changes.
#ifndef STARRING_KERNELS_PRODUCTS_H
#define STARRING_KERNELS_PRODUCTS_H

#include <stdbool.h>
#include <stdint.h>

struct device;
struct stream;

// Everything that a product's algorithm may depend on: the arguments of OP_MATMUL (struct matmul_args) without its
// pointers, but with the alignment promised of each. Compared as bytes: memset to 0 before it is filled.
struct product_key {
    int64_t m, n, k, lda, ldb, ldc;
    uint32_t a_align, b_align, c_align;  // bytes; a and b as the library sees them (matmul_layout.h): a is b
    uint32_t bias_align, aux_align;      // 0: there is none
    uint8_t trans_a, trans_b, accumulate;
    uint8_t epilogue;  // enum matmul_epilogue
    uint8_t dt;        // enum dtype
};

// An algorithm as the library describes it: its cublasLtMatmulAlgo_t, which is valid for the same version of
// the library ("trivially serialized and later restored for use with the same version of cuBLAS library",
// cublasLt.h) and the same device.
#define PRODUCT_ALGO_WORDS 8
struct product_algo {
    uint64_t word[PRODUCT_ALGO_WORDS];
};

struct product_choice {
    struct product_key key;
    struct product_algo algo;
};

enum product_source {
    PRODUCT_FIRST,    // no choice is known of it: the library's first heuristic
    PRODUCT_CHOSEN,   // the algorithm that was chosen for it
    PRODUCT_REFUSED,  // the library refused that one: the first heuristic, with a note (dev_note)
    PRODUCT_ABSENT    // the library does not do its epilogue: a plain product and our own kernel
};

struct product_use {
    struct product_key key;
    enum product_source source;
    uint64_t calls;
};

// Gives a device the algorithms to take, before its first product. The device copies them. Returns 0, or -1
// if there is no memory. Backends other than cuda ignore it.
int dev_choose_products(struct device *d, const struct product_choice *choices, int count);
// Writes up to `room` of the distinct products so far, in the order of their first calls, and returns how
// many there are. Backends other than cuda return 0.
int dev_products(struct device *d, struct product_use *out, int room);

#define PRODUCT_CANDIDATES 16
#define PRODUCT_ROUNDS_MAX 99

// The result of measuring one product. Seconds of device time per launch, medians over the rounds.
struct product_timing {
    int candidates;  // that the library named, all told
    int unstable;    // .. and of them, did not give the same bits twice
    int wrong;       // .. gave other numbers than the first heuristic, beyond what rounding explains
    int failed;      // .. did not run, or want what this program does not allow
    double first_s;  // of the first heuristic
    double best_s;   // of the one chosen
    int rank;        // the chosen one's place in the library's order; 0: the first heuristic
    bool none;       // no candidate may be chosen: algo is not set, best_s and rank are not either
    struct product_algo algo;
    int sets;  // buffers that the launches took in turn
};

// Measures the candidates of a product that the stream's device has been asked for. Blocks; the stream must
// be idle. Memory for the operands is taken outside the ledger and given back. rounds: 1 to
// PRODUCT_ROUNDS_MAX. Returns 0, or -1 if the stream failed (dev_error); backends other than cuda fail.
int stream_tune_product(struct stream *s, const struct product_key *key, int rounds,
                        struct product_timing *out);

#endif
