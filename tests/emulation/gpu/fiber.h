// One fiber: a stack of its own and the switch to and from it. Switches are by hand on x86-64 (a block
// of 256 threads with ten barriers is thousands of them) and by ucontext elsewhere; the address sanitizer
// is told of each. The thread sanitizer is not: all of the emulation is one thread, and emulation.mk
// compiles it without.
//
// Threads  A fiber belongs to the thread that created it.
#ifndef STARRING_TESTS_EMULATION_FIBER_H
#define STARRING_TESTS_EMULATION_FIBER_H

struct fiber;

// A fiber that has not started; NULL when out of memory. Stacks of different colours start at different
// places in their pages: else a block's fibers would all meet in the same few lines of the cache.
struct fiber *fiber_create(unsigned colour);
void fiber_destroy(struct fiber **f);
// The next fiber_enter starts fn(arg) from the beginning, whatever the fiber was doing.
void fiber_prepare(struct fiber *f, void (*fn)(void *arg), void *arg);
void fiber_enter(struct fiber *f);  // runs f until it leaves
void fiber_leave(struct fiber *f);  // called on f's own stack: goes on behind fiber_enter; fn ends so

#endif
