// The user's choices for a GPU: the configuration's section "cuda". A device receives them when it is opened
// (struct device_options); other backends ignore them. Zero is "auto" everywhere, and the code that makes a
// choice defines what auto means. No choice depends on timing during a run: equal choices give equal bits.
#ifndef STARRING_KERNELS_CUDA_CHOICES_H
#define STARRING_KERNELS_CUDA_CHOICES_H

#include <stdint.h>

enum cuda_attention {
    CUDA_ATTENTION_AUTO,   // cuDNN where it has a plan for the shape, else our own kernels, with a note
    CUDA_ATTENTION_CUDNN,  // cuDNN, or the operation fails
    CUDA_ATTENTION_OWN     // our own kernels; cuDNN is not used
};

// How a GELU that follows a matrix product is computed.
enum cuda_gelu {
    CUDA_GELU_AUTO,   // cuBLASLt's epilogue on the devices that kernels/cuda/host/matmul.c names
    CUDA_GELU_FUSED,  // the epilogue on every device
    CUDA_GELU_APART   // a product, then a kernel of our own
};

// How a bias gradient that accompanies a weight gradient's product is computed.
enum cuda_bias_grad {
    CUDA_BIAS_GRAD_AUTO,      // our own kernel
    CUDA_BIAS_GRAD_EPILOGUE,  // cuBLASLt's epilogue of the product
    CUDA_BIAS_GRAD_KERNEL     // our own kernel
};

// The slice size that auto means: a larger slice needs fewer executions but more memory. On an H100 a step of
// gpt2-124m with 32 sequences takes 1.7% less time in one slice of 805 MB than in four (docs/results).
#define CUDA_SLICE_AUTO_BYTES ((int64_t)1 << 30)
#define CUDA_SLICE_AUTO       0
#define CUDA_SLICE_WHOLE      (-1)

struct cuda_choices {
    enum cuda_attention attention;
    // Limit in bytes of the score matrices in cuDNN's repeatable backward: a batch is cut into slices of
    // sequences that fit. Or CUDA_SLICE_AUTO, or CUDA_SLICE_WHOLE (the batch is not cut).
    int64_t attention_slice_bytes;
    enum cuda_gelu gelu;
    enum cuda_bias_grad bias_grad;
};

#endif
