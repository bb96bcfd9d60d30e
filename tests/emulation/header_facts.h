// What a set of headers declares, as names and numbers: header_facts.c compiled with our declarations
// (facts_ours) and with the installed headers (facts_installed). test_emulated_headers.c compares the two.
#ifndef STARRING_TESTS_EMULATION_HEADER_FACTS_H
#define STARRING_TESTS_EMULATION_HEADER_FACTS_H

#include <stddef.h>

enum header { HEADER_RUNTIME, HEADER_CUBLASLT, HEADER_CUDNN, HEADER_NCCL };

struct fact {
    const char *name;
    long long value;  // of a constant; bytes; 1: the function has this signature
};

// At most room facts of a header; returns how many there are, 0 when the header is not installed.
size_t facts_ours(enum header which, struct fact *out, size_t room);
size_t facts_installed(enum header which, struct fact *out, size_t room);

#endif
