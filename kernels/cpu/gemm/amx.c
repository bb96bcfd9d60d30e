// The micro-kernel of AMX. Its tile registers hold 16 rows of 64 bytes; TDPBF16PS multiplies 16 rows of 32 values of k
// by 16 columns. 2 x 2 tiles of c are accumulated together, so that each loaded tile is used twice.
//
//     a panel: for each 32 values of k, 2 tiles of 16 rows; a row has its 32 values of k
//     b panel: for each 32 values of k, 2 tiles of 16 columns; row j of a tile has k = (2j, 2j+1) of 16 columns
//
// The compiler must support AMX but needs no flag: the program checks the processor at run time. Linux grants
// the registers to a process that asks for them (ARCH_REQ_XCOMP_PERM, Documentation/arch/x86/xstate.rst). If it
// refuses, another micro-kernel is used.
#if defined(__x86_64__) && (__GNUC__ >= 11 || (defined(__clang__) && __clang_major__ >= 12))
#define TARGET_AMX __attribute__((target("amx-tile,amx-bf16")))
#include <cpuid.h>
#include <immintrin.h>
#endif
#include <sys/syscall.h>
#include <unistd.h>

#include "kernels/cpu/gemm/panels.h"

static const char *amx_unsupported(void);

#ifndef TARGET_AMX
const struct micro_kernel bf16_amx_kernel = {.unsupported = amx_unsupported};
#else

static bool amx_lent(void) {
    unsigned a, b, c, d, low, high;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d >> 22 & 1) || !(d >> 24 & 1)) return false;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c >> 27 & 1)) return false;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    if ((low >> 17 & 3) != 3) return false;  // the system saves the tiles and their configuration
    enum { REQ_XCOMP_PERM = 0x1023, TILE_DATA = 18 };
    return syscall(SYS_arch_prctl, REQ_XCOMP_PERM, TILE_DATA) == 0;
}

#define TILE_ROWS  16
#define TILE_BYTES 1024
#define SIDE       (2 * TILE_ROWS)  // rows and columns of c

// Stores the pairs of load_pairs as rows of a tile of b.
VEC_INLINE void place_columns(const vecf pair[PAIRS], int width, int column, void *block) {
    float *tile = (float *)block + column / TILE_ROWS * (TILE_BYTES / 4) + column % TILE_ROWS;
    (void)width;
    for (int j = 0; j < PAIRS; j++) vec_store_f32(tile + j * TILE_ROWS, pair[j]);
}
static void amx_pack_b(const struct operand *x, int64_t rows, int64_t depth, void *panel) {
    pack_bf16(x, rows, depth, SIDE, place_columns, 2 * TILE_BYTES, panel);
}

// Stores the transposed pairs as rows of a tile of a.
VEC_INLINE void place_rows(const vecf pair[PAIRS], int width, int row, void *block) {
    float *tile = (float *)block + row * PAIRS;
    (void)width;
    for (int j = 0; j < PAIRS; j += VEC) {
        vecf v[VEC];
        memcpy(v, pair + j, sizeof v);
        vec_transpose(v);
        for (int r = 0; r < VEC; r++) vec_store_f32(tile + r * PAIRS + j, v[r]);
    }
}
static void amx_pack_a(const struct operand *x, int64_t rows, int64_t depth, void *panel) {
    if (x->k_stride != 1) {
        pack_bf16(x, rows, depth, SIDE, place_rows, 2 * TILE_BYTES, panel);
        return;
    }
    uint16_t *out = panel;
    for (int64_t k = 0; k < depth; k += BF16_BLOCK)
        for (int64_t r = 0; r < SIDE; r++, out += BF16_BLOCK) {
            const uint16_t *row = (const uint16_t *)x->p + (r < rows ? r * x->row_stride + k : 0);
            if (r < rows && k + BF16_BLOCK <= depth) {
                memcpy(out, row, BF16_BLOCK * sizeof *out);
            } else {
                memset(out, 0, BF16_BLOCK * sizeof *out);
                if (r < rows) memcpy(out, row, (size_t)(depth - k) * sizeof *out);
            }
        }
}

TARGET_AMX static void amx_begin(void) {
    static const struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } all = {
        .palette = 1,
        .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
        .rows = {TILE_ROWS, TILE_ROWS, TILE_ROWS, TILE_ROWS, TILE_ROWS, TILE_ROWS, TILE_ROWS, TILE_ROWS}};
    _tile_loadconfig(&all);
}

TARGET_AMX static void amx_end(void) { _tile_release(); }

TARGET_AMX static void amx_tile(const void *a, const void *b, int64_t rows_needed, int64_t depth, float *c,
                                int64_t ldc, bool accumulate) {
    const char *x = a, *y = b;
    const size_t stride = (size_t)ldc * sizeof *c;
    float *below = c + TILE_ROWS * ldc;
    const bool both = rows_needed > TILE_ROWS;
    if (accumulate) {
        _tile_loadd(0, c, stride);
        _tile_loadd(1, c + TILE_ROWS, stride);
    } else {
        _tile_zero(0);
        _tile_zero(1);
    }
    if (both && accumulate) {
        _tile_loadd(2, below, stride);
        _tile_loadd(3, below + TILE_ROWS, stride);
    } else {
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int64_t k = 0; k < depth; k += BF16_BLOCK, x += 2 * TILE_BYTES, y += 2 * TILE_BYTES) {
        _tile_loadd(4, x, 64);
        _tile_loadd(6, y, 64);
        _tile_loadd(7, y + TILE_BYTES, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        if (!both) continue;
        _tile_loadd(5, x + TILE_BYTES, 64);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, c, stride);
    _tile_stored(1, c + TILE_ROWS, stride);
    if (!both) return;
    _tile_stored(2, below, stride);
    _tile_stored(3, below + TILE_ROWS, stride);
}

#ifdef STARRING_AMX  // tests name a file that emulates the instructions
#include STARRING_AMX
#endif

// The a panel in use and the b panel stay in a first-level cache of 48 KiB, the other panels in a second level
// of 2 MiB.
const struct micro_kernel bf16_amx_kernel = {.instruction = "AMX, tiles of bf16",
                                             .unsupported = amx_unsupported,
                                             .rows = SIDE,
                                             .columns = SIDE,
                                             .k_grain = BF16_BLOCK,
                                             .bytes = sizeof(uint16_t),
                                             .depth_max = 512,
                                             .row_panels = 8,
                                             .row_panels_max = 32,
                                             .column_panels_max = 48,
                                             .pack_a = amx_pack_a,
                                             .pack_b = amx_pack_b,
                                             .tile = amx_tile,
                                             .begin = amx_begin,
                                             .end = amx_end};
#endif

static const char *amx_unsupported(void) {
#ifdef TARGET_AMX
    if (amx_lent()) return NULL;
#ifdef STARRING_AMX
    if (amx_trapped()) return NULL;
#endif
#endif
    return "this processor has no AMX with bf16, the system does not lend it, or the program's compiler did not know it";
}
