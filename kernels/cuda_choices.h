// The user's choices of a GPU's work: the configuration's section "cuda". A device takes it when it is
// opened (struct device_options); other backends ignore it. Zero is "auto" everywhere; the code that makes a
// choice says what auto takes. No choice depends on timing during a run: equal choices give equal bits.
#ifndef STARRING_KERNELS_CUDA_CHOICES_H
#define STARRING_KERNELS_CUDA_CHOICES_H

#include <stdint.h>

enum cuda_attention {
    CUDA_ATTENTION_AUTO,   // cuDNN where it has a plan for the shape, else our own kernels, with a note
    CUDA_ATTENTION_CUDNN,  // cuDNN, or the operation fails
    CUDA_ATTENTION_OWN     // our own kernels; cuDNN is not asked
};

// A GELU that belongs to a matrix product.
enum cuda_gelu {
    CUDA_GELU_AUTO,   // cuBLASLt's epilogue on the devices that kernels/cuda/host/matmul.c names
    CUDA_GELU_FUSED,  // the epilogue on every device
    CUDA_GELU_APART   // a product and a kernel of our own
};

// A bias gradient that belongs to a weight gradient's product.
enum cuda_bias_grad {
    CUDA_BIAS_GRAD_AUTO,      // our own kernel
    CUDA_BIAS_GRAD_EPILOGUE,  // cuBLASLt's epilogue of the product
    CUDA_BIAS_GRAD_KERNEL     // our own kernel
};

// The bytes of a slice's score matrices that auto stands for: fewer executions against memory. On an H100 a step of
// gpt2-124m with 32 sequences takes 1.7% less time in one slice of 805 MB than in four (docs/results).
#define CUDA_SLICE_AUTO_BYTES ((int64_t)1 << 30)
#define CUDA_SLICE_AUTO       0
#define CUDA_SLICE_WHOLE      (-1)

struct cuda_choices {
    enum cuda_attention attention;
    // Bytes that the score matrices of cuDNN's repeatable backward may take at once: a batch is cut into
    // slices of sequences so that they fit. Or CUDA_SLICE_AUTO, CUDA_SLICE_WHOLE (the batch is not cut).
    int64_t attention_slice_bytes;
    enum cuda_gelu gelu;
    enum cuda_bias_grad bias_grad;
};

#endif
