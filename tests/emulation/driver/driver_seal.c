// The modules loaded on the emulated devices, and late actions: allocations, creations and first launches on a
// device that has communicators. A GPU may wait for all of its work then, so also for a
// collective that waits for a peer, who may be about to wait likewise.
#include "tests/emulation/driver/driver_impl.h"

#define TOLD_MAX   8     // of what comes too late
#define LOADED_MAX 4096  // a power of two; several times what there is

static struct {
    pthread_mutex_t lock;
    int seals[DEVICES_MAX];
    bool shared[DEVICES_MAX];                     // by several ranks
    unsigned late;                                // things that came too late
    const void *loaded[DEVICES_MAX][LOADED_MAX];  // open addressing
} state = {.lock = PTHREAD_MUTEX_INITIALIZER};

void emu_device_seal(int device, int change, bool shared) {
    pthread_mutex_lock(&state.lock);
    state.seals[device] += change;
    state.shared[device] = shared;
    pthread_mutex_unlock(&state.lock);
}

unsigned emu_late(void) {
    pthread_mutex_lock(&state.lock);
    unsigned late = state.late;
    pthread_mutex_unlock(&state.lock);
    return late;
}

void driver_creates(const char *what) {
    pthread_mutex_lock(&state.lock);
    bool late = state.seals[driver_current()] > 0 && state.late++ < TOLD_MAX;
    pthread_mutex_unlock(&state.lock);
    if (late) driver_note("%s on device %d, which has communicators", what, driver_current());
}

// The end of a run frees behind a barrier of the ranks: what a peer on the same device still has to do then
// waits for nobody's host.
void driver_frees(const char *what, bool busy) {
    int device = driver_current();
    pthread_mutex_lock(&state.lock);
    bool shared = state.shared[device];
    pthread_mutex_unlock(&state.lock);
    if (!shared && busy) driver_creates(what);
}

void emu_load(int device, const void *kernel, const char *name) {
    if (!kernel) return;
    if (device < 0) device = driver_current();
    pthread_mutex_lock(&state.lock);
    const void **all = state.loaded[device];
    size_t at = (uintptr_t)kernel / 4 * 0x9e3779b9u % LOADED_MAX, looked = 0;
    while (all[at] && all[at] != kernel && looked++ < LOADED_MAX) at = (at + 1) % LOADED_MAX;
    bool late = !all[at] && state.seals[device] > 0 && state.late++ < TOLD_MAX;
    all[at] = kernel;
    pthread_mutex_unlock(&state.lock);
    if (late) driver_note("%s is loaded on device %d, which has communicators", name, device);
}
