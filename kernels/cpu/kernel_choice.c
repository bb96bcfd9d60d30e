// Chooses how matrix products are computed on this machine.
#include <pthread.h>

#include "kernels/bf16_product.h"
#include "kernels/cpu/gemm/product_way.h"

const char *cpu_kernel_name(enum cpu_kernel k) {
    static const char *const names[CPU_KERNEL_COUNT] = {"auto", "fma", "avx512_bf16", "amx"};
    return names[k];
}

// The bf16 ways that this machine supports, and whether a way's bits differ from the definition.
static const struct product_way *ways[CPU_KERNEL_COUNT];
static bool unlike[CPU_KERNEL_COUNT];
static pthread_once_t looked = PTHREAD_ONCE_INIT;

// Fills x with bf16 values: three in four near 1, the others of any exponent up to there, subnormal ones
// included.
static void fill(uint16_t *x, int n, uint64_t *state) {
    for (int i = 0; i < n; i++) {
        *state = *state * 6364136223846793005u + 1442695040888963407u;
        uint32_t bits = (uint32_t)(*state >> 32);
        x[i] = (uint16_t)(bits & 0x30000 ? (bits & 0x80ffu) | 0x3f00u : bits & 0xbfffu);
    }
}

// Compares the way with the definition, for two blocks of k and the first rows and columns of a tile.
static bool agrees(const struct product_way *way) {
    enum { ROWS = 4, COLUMNS = 16, K = 2 * BF16_BLOCK };
    _Alignas(64) uint16_t panel[2][32 * K * 2 + 128];
    _Alignas(64) float c[32 * 32];
    uint16_t a[ROWS * K], b[COLUMNS * K];
    uint64_t state = 1;
    bool same = true;
    for (int round = 0; round < 8; round++) {
        fill(a, ROWS * K, &state);
        fill(b, COLUMNS * K, &state);
        way->pack_a(&(struct operand){a, DT_BF16, K, 1}, ROWS, K, panel[0]);
        way->pack_b(&(struct operand){b, DT_BF16, K, 1}, COLUMNS, K, panel[1]);
        if (way->begin) way->begin();
        way->tile(panel[0], panel[1], way->rows, K, c, way->columns, false);
        if (way->end) way->end();
        for (int at = 0; at < ROWS * COLUMNS; at++) {
            float x[K], y[K], want = 0;
            for (int k = 0; k < K; k++) {
                x[k] = bf16_to_f32(a[at / COLUMNS * K + k]);
                y[k] = bf16_to_f32(b[at % COLUMNS * K + k]);
            }
            for (int k = 0; k < K; k += BF16_BLOCK) want = bf16_block(x + k, y + k, want);
            same &= f32_to_bits(want) == f32_to_bits(c[at / COLUMNS * way->columns + at % COLUMNS]);
        }
    }
    return same;
}

static void look(void) {
    ways[CPU_KERNEL_FMA] = &bf16_fma_way;
    ways[CPU_KERNEL_AVX512_BF16] = bf16_pairs_way();
    ways[CPU_KERNEL_AMX] = bf16_amx_way();
    for (int k = CPU_KERNEL_AVX512_BF16; k < CPU_KERNEL_COUNT; k++) unlike[k] = ways[k] && !agrees(ways[k]);
}

// vdpbf16ps is twice as fast as fma on AMD since Zen 4 and on Cooper Lake. It is half as fast on Intel since
// Sapphire Rapids (measured), whose cores have AMX for bf16.
static bool pairs_are_faster(void) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    return !__builtin_cpu_is("intel") || __builtin_cpu_is("cooperlake");
#else
    return false;
#endif
}

int cpu_kernel_resolve(enum cpu_kernel asked, enum cpu_kernel *out, const char **why) {
    static const char *const absent[CPU_KERNEL_COUNT] = {
        [CPU_KERNEL_AVX512_BF16] =
            "this processor, or what the program was built for (ARCH=), has no AVX512_BF16",
        [CPU_KERNEL_AMX] =
            "this processor has no AMX with bf16, the system does not lend it, or the program's compiler did not know it",
    };
    pthread_once(&looked, look);
    if (asked == CPU_KERNEL_AUTO) {
        *out = ways[CPU_KERNEL_AMX] && !unlike[CPU_KERNEL_AMX] ? CPU_KERNEL_AMX
               : ways[CPU_KERNEL_AVX512_BF16] && !unlike[CPU_KERNEL_AVX512_BF16] && pairs_are_faster()
                   ? CPU_KERNEL_AVX512_BF16
                   : CPU_KERNEL_FMA;
        return 0;
    }
    if (!ways[asked] || unlike[asked]) {
        *why = unlike[asked] ? "this processor's instruction gives other bits than those defined"
                             : absent[asked];
        return -1;
    }
    *out = asked;
    return 0;
}

const struct product_way *product_way(enum dtype t, enum cpu_kernel kernel) {
    pthread_once(&looked, look);
    return t == DT_BF16 ? ways[kernel] : &chain_way;
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
