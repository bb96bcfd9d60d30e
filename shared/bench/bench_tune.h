// What `starring bench tune` says of a matrix product.
#ifndef STARRING_SHARED_BENCH_BENCH_TUNE_H
#define STARRING_SHARED_BENCH_BENCH_TUNE_H

#include "kernels/backend.h"
#include "shared/model/spec.h"

// What a product of the model is for, as far as its shape tells: "mlp up, forward". Returns text.
#define PRODUCT_PURPOSE_BYTES 64
const char *product_purpose(char text[PRODUCT_PURPOSE_BYTES], const struct model_spec *s,
                            const struct product_key *k);

#endif
