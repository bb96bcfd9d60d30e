// AMX on a processor without it: each of its instructions ends in SIGILL, whose handler computes it as kernels/bf16_product.h
// defines and goes on behind it. So kernels/cpu/gemm/amx.c runs as it is compiled, and a wrong operand, stride or
// configuration of the tiles shows.
//
// Source   Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2: LDTILECFG, TILERELEASE, TILEZERO, TILELOADD,
//          TILESTORED, TDPBF16PS, with what makes each of them illegal.
#include <assert.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <ucontext.h>

#include "kernels/bf16_product.h"

static _Thread_local struct {
    bool configured;
    uint32_t tile[8][16][16];
} amx;

static void trapped_config(const uint8_t *c) {
    assert(!amx.configured && "the thread's last tiles are released");
    assert(c[0] == 1 && c[1] == 0 && "palette, first row");
    for (int i = 2; i < 16; i++) assert(c[i] == 0 && "reserved");
    for (int i = 0; i < 16; i++)
        assert(c[16 + 2 * i] == (i < 8 ? 64 : 0) && c[17 + 2 * i] == 0 && c[48 + i] == (i < 8 ? 16 : 0));
    memset(amx.tile, 0, sizeof amx.tile);
    amx.configured = true;
}

static void trapped_product(int c, int a, int b) {
    assert(b < 8 && c != a && c != b && a != b);
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

static void trapped_instruction(int signal_number, siginfo_t *info, void *context) {
    static const int registers[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                                      REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};
    (void)signal_number, (void)info;
    greg_t *g = ((ucontext_t *)context)->uc_mcontext.gregs;
    // c4; R, X, B inverted and the map 0f38; W, the third operand inverted, L, the prefix; the opcode; ModRM
    const uint8_t *at = (const uint8_t *)g[REG_RIP], *next = at + 5;
    assert(at[0] == 0xc4 && (at[1] & 0x9f) == 0x82 && !(at[2] & 0x84) && "an instruction of AMX");
    int opcode = (at[2] & 3) << 8 | at[3], third = ~at[2] >> 3 & 15;
    int mode = at[4] >> 6, first = at[4] >> 3 & 7, second = at[4] & 7;
    char *memory = NULL;
    greg_t stride = 0;
    if (mode != 3) {
        bool sib = second == 4;
        int base = sib ? *next & 7 : second, bytes = mode == 1 ? 1 : mode == 2 || base == 5 ? 4 : 0;
        int index = sib ? (*next >> 3 & 7) | (at[1] & 0x40 ? 0 : 8) : 4;
        if (index != 4) stride = g[registers[index]] << (*next >> 6);
        next += sib;
        int32_t displacement = bytes == 1 ? (int8_t)*next : 0;
        if (bytes == 4) memcpy(&displacement, next, 4);
        next += bytes;
        greg_t from = g[registers[base | (at[1] & 0x20 ? 0 : 8)]];
        if (mode == 0 && base == 5) from = sib ? 0 : (greg_t)next;
        memory = (char *)(from + displacement);
    }
    g[REG_RIP] = (greg_t)next;
    if (opcode == 0x049 && mode != 3) {
        trapped_config((const uint8_t *)memory);
        return;
    }
    if (opcode == 0x049) {
        memset(&amx, 0xff, sizeof amx);
        amx.configured = false;
        return;
    }
    assert(amx.configured);
    if (opcode == 0x349)
        memset(amx.tile[first], 0, sizeof amx.tile[first]);
    else if (opcode == 0x34b)
        for (int r = 0; r < 16; r++) memcpy(amx.tile[first][r], memory + r * stride, 64);
    else if (opcode == 0x24b)
        for (int r = 0; r < 16; r++) memcpy(memory + r * stride, amx.tile[first][r], 64);
    else if (opcode == 0x25c)
        trapped_product(first, second, third);
    else
        assert(!"an instruction that this file knows");
}

// Whether the instructions are computed from now on: not where the processor has them, lent or not.
static bool amx_trapped(void) {
    unsigned a, b, c, d;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d) && d >> 24 & 1) return false;
    struct sigaction action = {.sa_sigaction = trapped_instruction, .sa_flags = SA_SIGINFO};
    return sigaction(SIGILL, &action, NULL) == 0;
}
