// One fiber: a stack of its own and the switch to and from it. Switches are by hand on x86-64 (a block
// of 256 threads with ten barriers is thousands of them) and by ucontext elsewhere; the sanitizers are
// told of each.
//
// Threads  A fiber belongs to the thread that created it.
#ifndef STARRING_TESTS_EMULATION_FIBER_H
#define STARRING_TESTS_EMULATION_FIBER_H

struct fiber;

// A fiber that has not started; NULL when out of memory.
struct fiber *fiber_create(void);
void fiber_destroy(struct fiber **f);
// The next fiber_enter starts fn(arg) from the beginning, whatever the fiber was doing.
void fiber_prepare(struct fiber *f, void (*fn)(void *arg), void *arg);
void fiber_enter(struct fiber *f);  // runs f until it leaves
void fiber_leave(struct fiber *f);  // called on f's own stack: goes on behind fiber_enter; fn ends so

#endif
