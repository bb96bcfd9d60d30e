#include "shared/run/device_choice.h"

#include "shared/core/error.h"

void device_resolve(struct config *c) {
    const char *why;
    if (c->device != DEVICE_AUTO) return;
    const struct backend *cuda = backend_find("cuda", &why);
    c->device = cuda ? DEVICE_CUDA : DEVICE_CPU;
    if (cuda) info("device: auto -> cuda (%d found)", backend_devices(cuda));
}

const struct backend *device_backend(const struct config *c) {
    static const char *const names[] = {
        [DEVICE_AUTO] = "cpu", [DEVICE_CPU] = "cpu", [DEVICE_CUDA] = "cuda", [DEVICE_REF] = "ref"};
    const char *why = "";
    const struct backend *b = backend_find(names[c->device], &why);
    if (!b) fail("--device %s: %s", names[c->device], why);
    return b;
}

int device_gpus(const struct config *c) {
    const char *why;
    const struct backend *b = c->device == DEVICE_CUDA ? backend_find("cuda", &why) : NULL;
    return b ? backend_devices(b) : 0;
}
