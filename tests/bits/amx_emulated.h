// AMX's instructions in C, for kernels/cpu/gemm/amx.c on processors without them: eight tiles of a thread, as
// kernels/bf16_product.h defines their product.
#include <assert.h>
#include <stdbool.h>

#include "kernels/bf16_product.h"
#include "kernels/cpu/vec.h"  // what the compiler calls by these names it has defined now

#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#undef _tile_zero

#define TARGET_AMX

static _Thread_local struct {
    bool configured;
    uint32_t tile[8][16][16];
} amx;

static bool amx_lent(void) { return true; }

static void emulated_loadconfig(const void *config) {
    const uint8_t *c = config;
    assert(c[0] == 1);
    for (int i = 0; i < 8; i++) assert(c[16 + 2 * i] == 64 && c[48 + i] == 16);
    amx.configured = true;
}
static void emulated_release(void) { amx.configured = false; }

static void emulated_zero(int t) {
    assert(amx.configured);
    memset(amx.tile[t], 0, sizeof amx.tile[t]);
}
static void emulated_loadd(int t, const void *p, size_t stride) {
    assert(amx.configured);
    for (int r = 0; r < 16; r++) memcpy(amx.tile[t][r], (const char *)p + (size_t)r * stride, 64);
}
static void emulated_stored(int t, void *p, size_t stride) {
    assert(amx.configured);
    for (int r = 0; r < 16; r++) memcpy((char *)p + (size_t)r * stride, amx.tile[t][r], 64);
}

static void emulated_dpbf16ps(int c, int a, int b) {
    assert(amx.configured);
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 16; j++) {
            float x[BF16_BLOCK], y[BF16_BLOCK];
            for (int k = 0; k < BF16_BLOCK; k++) {
                int shift = k % 2 ? 0 : 16;
                x[k] = bits_to_f32(amx.tile[a][i][k / 2] << shift & 0xffff0000u);
                y[k] = bits_to_f32(amx.tile[b][k / 2][j] << shift & 0xffff0000u);
            }
            amx.tile[c][i][j] = f32_to_bits(bf16_block(x, y, bits_to_f32(amx.tile[c][i][j])));
        }
}

#define _tile_loadconfig emulated_loadconfig
#define _tile_release    emulated_release
#define _tile_zero       emulated_zero
#define _tile_loadd      emulated_loadd
#define _tile_stored     emulated_stored
#define _tile_dpbf16ps   emulated_dpbf16ps
