// The result of `starring bench tune` for a matrix product.
#ifndef STARRING_SHARED_BENCH_BENCH_TUNE_H
#define STARRING_SHARED_BENCH_BENCH_TUNE_H

#include "kernels/backend.h"
#include "shared/model/spec.h"

// The purpose of a product of the model, as far as its shape tells: "mlp up, forward". Returns text.
#define PRODUCT_PURPOSE_BYTES 64
const char *product_purpose(char text[PRODUCT_PURPOSE_BYTES], const struct model_spec *s,
                            const struct product_key *k);

#endif
