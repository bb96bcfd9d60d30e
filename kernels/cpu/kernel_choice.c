// Chooses how matrix products are computed on this machine.
#include <pthread.h>

#include "kernels/bf16_product.h"
#include "kernels/cpu/gemm/micro_kernel.h"

#define NAME(ID, name) #name,
const char *const cpu_kernel_names[CPU_KERNEL_COUNT + 1] = {"auto", CPU_KERNELS(NAME) NULL};
const char *cpu_kernel_name(enum cpu_kernel k) { return cpu_kernel_names[k]; }

#define ROW(ID, name) [CPU_KERNEL_##ID] = &bf16_##name##_kernel,
static const struct micro_kernel *const micro_kernels[CPU_KERNEL_COUNT] = {CPU_KERNELS(ROW)};
// Why a micro-kernel is not used on this machine; NULL: it is.
static const char *unusable[CPU_KERNEL_COUNT];
static pthread_once_t checked = PTHREAD_ONCE_INIT;

// Fills x with bf16 values: three in four near 1, the others of any exponent up to there, subnormal ones
// included.
static void fill(uint16_t *x, int n, uint64_t *state) {
    for (int i = 0; i < n; i++) {
        *state = *state * 6364136223846793005u + 1442695040888963407u;
        uint32_t bits = (uint32_t)(*state >> 32);
        x[i] = (uint16_t)(bits & 0x30000 ? (bits & 0x80ffu) | 0x3f00u : bits & 0xbfffu);
    }
}

// Compares the micro-kernel with the definition, for two blocks of k and the first rows and columns of a tile.
static bool agrees(const struct micro_kernel *micro) {
    enum { ROWS = 4, COLUMNS = 16, K = 2 * BF16_BLOCK };
    _Alignas(64) uint16_t panel[2][32 * K * 2 + 128];
    _Alignas(64) float c[32 * 32];
    uint16_t a[ROWS * K], b[COLUMNS * K];
    uint64_t state = 1;
    bool same = true;
    for (int trial = 0; trial < 8; trial++) {
        fill(a, ROWS * K, &state);
        fill(b, COLUMNS * K, &state);
        micro->pack_a(&(struct operand){a, DT_BF16, K, 1}, ROWS, K, panel[0]);
        micro->pack_b(&(struct operand){b, DT_BF16, K, 1}, COLUMNS, K, panel[1]);
        if (micro->begin) micro->begin();
        micro->tile(panel[0], panel[1], micro->rows, K, c, micro->columns, false);
        if (micro->end) micro->end();
        for (int at = 0; at < ROWS * COLUMNS; at++) {
            float x[K], y[K], want = 0;
            for (int k = 0; k < K; k++) {
                x[k] = bf16_to_f32(a[at / COLUMNS * K + k]);
                y[k] = bf16_to_f32(b[at % COLUMNS * K + k]);
            }
            for (int k = 0; k < K; k += BF16_BLOCK) want = bf16_block(x + k, y + k, want);
            same &= f32_to_bits(want) == f32_to_bits(c[at / COLUMNS * micro->columns + at % COLUMNS]);
        }
    }
    return same;
}

static void check_kernels(void) {
    for (int k = CPU_KERNEL_AUTO + 1; k < CPU_KERNEL_COUNT; k++) {
        if (!micro_kernels[k]->unsupported) continue;
        unusable[k] = micro_kernels[k]->unsupported();
        if (!unusable[k] && !agrees(micro_kernels[k]))
            unusable[k] = "this processor's instruction gives other bits than those defined";
    }
}

int cpu_kernel_resolve(enum cpu_kernel asked, enum cpu_kernel *out, const char **why) {
    pthread_once(&checked, check_kernels);
    enum cpu_kernel chosen = asked;
    for (int k = CPU_KERNEL_AUTO + 1; k < CPU_KERNEL_COUNT && asked == CPU_KERNEL_AUTO; k++)
        if (!unusable[k] && (!micro_kernels[k]->preferred || micro_kernels[k]->preferred()))
            chosen = (enum cpu_kernel)k;
    if (unusable[chosen]) {
        *why = unusable[chosen];
        return -1;
    }
    *out = chosen;
    return 0;
}

const struct micro_kernel *micro_kernel_of(enum dtype t, enum cpu_kernel kernel) {
    return t == DT_BF16 ? micro_kernels[kernel] : &chain_kernel;
}

const char *cpu_kernel_vectors(void) {
#if defined(__AVX512BF16__)
    return "AVX-512 with bf16";
#elif defined(__AVX512F__)
    return "AVX-512";
#elif defined(__AVX2__) && defined(__FMA__)
    return "AVX2 and FMA";
#elif defined(__AVX__)
    return "AVX";
#elif defined(__SSE2__)
    return "SSE2";
#else
    return "none";
#endif
}
