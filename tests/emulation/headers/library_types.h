// Stands in for CUDA's header of this name where it is missing: see cuda_runtime_api.h.
#ifndef STARRING_TESTS_EMULATION_LIBRARY_TYPES_H
#define STARRING_TESTS_EMULATION_LIBRARY_TYPES_H

typedef enum cudaDataType_t { CUDA_R_32F = 0, CUDA_R_16F = 2, CUDA_R_16BF = 14 } cudaDataType;
typedef enum cudaDataType_t cudaDataType_t;

#endif
