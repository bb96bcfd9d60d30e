// Stack switching for the emulated threads.
#include "tests/emulation/gpu/fiber.h"

#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#ifndef __x86_64__
#include <ucontext.h>
#endif

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#define STACK_BYTES  ((size_t)256 << 10)
#define COLOURS      128
#define COLOUR_BYTES 192  // three cache lines

struct fiber {
    unsigned char *stack;  // STACK_BYTES
    size_t used_bytes;     // of them, from the start
    void (*fn)(void *arg);
    void *arg;
#ifdef __x86_64__
    void *sp, *caller_sp;
#else
    ucontext_t context, caller;
#endif
    // The address sanitizer's state of either side of a switch.
    void *fake_stack, *caller_fake_stack;
    const void *caller_stack;
    size_t caller_stack_bytes;
};

// ---------------------------------------------------------------- address sanitizer
static void before_enter(struct fiber *f) {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&f->caller_fake_stack, f->stack, STACK_BYTES);
#endif
    (void)f;
}

static void after_enter(struct fiber *f) {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(f->caller_fake_stack, NULL, NULL);
#endif
    (void)f;
}

static void on_arrival(struct fiber *f) {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(f->fake_stack, &f->caller_stack, &f->caller_stack_bytes);
#endif
    (void)f;
}

static void before_leave(struct fiber *f) {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&f->fake_stack, f->caller_stack, f->caller_stack_bytes);
#endif
    (void)f;
}

// ---------------------------------------------------------------- the switch
static void run(struct fiber *f) {
    on_arrival(f);
    f->fn(f->arg);
    abort();  // fn leaves and is not entered again
}

#ifdef __x86_64__
// Saves the registers that a call preserves, stores the stack pointer, goes on from another.
extern "C" void emu_switch_stack(void **save_sp, void *load_sp);
__asm__(
    ".text\n"
    ".p2align 4\n"
    ".type emu_switch_stack,@function\n"
    "emu_switch_stack:\n"
    "    pushq %rbp\n    pushq %rbx\n    pushq %r12\n    pushq %r13\n    pushq %r14\n    pushq %r15\n"
    "    movq %rsp, (%rdi)\n"
    "    movq %rsi, %rsp\n"
    "    popq %r15\n    popq %r14\n    popq %r13\n    popq %r12\n    popq %rbx\n    popq %rbp\n"
    "    ret\n"
    ".size emu_switch_stack,.-emu_switch_stack\n");

// The first return lands here, with the fiber in a preserved register.
extern "C" void emu_fiber_start(struct fiber *f) { run(f); }
extern "C" void emu_fiber_landing(void);
__asm__(
    ".text\n"
    ".type emu_fiber_landing,@function\n"
    "emu_fiber_landing:\n"
    "    movq %rbx, %rdi\n"
    "    call emu_fiber_start\n"
    ".size emu_fiber_landing,.-emu_fiber_landing\n");

// | r15 | r14 | r13 | r12 | rbx: the fiber | rbp | landing | 0 | 0 |  <- end of the stack
// The landing calls with the stack at a multiple of 16 bytes, as the calling convention wants it.
static void set_start(struct fiber *f) {
    uint64_t frame[9] = {0, 0, 0, 0, (uint64_t)(uintptr_t)f, 0, (uint64_t)(uintptr_t)&emu_fiber_landing,
                         0, 0};
    f->sp = f->stack + f->used_bytes - sizeof frame;
    memcpy(f->sp, frame, sizeof frame);
}
static void switch_in(struct fiber *f) { emu_switch_stack(&f->caller_sp, f->sp); }
static void switch_out(struct fiber *f) { emu_switch_stack(&f->sp, f->caller_sp); }
#else
static void landing(unsigned high, unsigned low) { run((struct fiber *)((uintptr_t)high << 32 | low)); }
static void set_start(struct fiber *f) {
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = f->stack;
    f->context.uc_stack.ss_size = f->used_bytes;
    f->context.uc_link = NULL;
    uintptr_t p = (uintptr_t)f;
    makecontext(&f->context, (void (*)(void))landing, 2, (unsigned)(p >> 32), (unsigned)p);
}
static void switch_in(struct fiber *f) { swapcontext(&f->caller, &f->context); }
static void switch_out(struct fiber *f) { swapcontext(&f->context, &f->caller); }
#endif

struct fiber *fiber_create(unsigned colour) {
    struct fiber *f = (struct fiber *)calloc(1, sizeof *f);
    if (!f) return NULL;
    void *p =
        mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) {
        free(f);
        return NULL;
    }
    f->stack = (unsigned char *)p;
    f->used_bytes = STACK_BYTES - colour % COLOURS * COLOUR_BYTES;
    return f;
}

void fiber_destroy(struct fiber **pf) {
    struct fiber *f = *pf;
    if (!f) return;
#if defined(__SANITIZE_ADDRESS__)
    __asan_unpoison_memory_region(f->stack, STACK_BYTES);  // what it was in the middle of
#endif
    munmap(f->stack, STACK_BYTES);
    free(f);
    *pf = NULL;
}

void fiber_prepare(struct fiber *f, void (*fn)(void *arg), void *arg) {
    f->fn = fn;
    f->arg = arg;
    f->fake_stack = NULL;
    set_start(f);
}

void fiber_enter(struct fiber *f) {
    before_enter(f);
    switch_in(f);
    after_enter(f);
}

void fiber_leave(struct fiber *f) {
    before_leave(f);
    switch_out(f);
    on_arrival(f);
}
