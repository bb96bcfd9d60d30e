#include "shared/device/device_choice.h"

#include <stdlib.h>

#include "shared/core/error.h"

static void resolve_auto(struct config *c) {
    const char *why;
    if (c->device != DEVICE_AUTO) return;
    const struct backend *cuda = backend_find("cuda", &why);
    c->device = cuda ? DEVICE_CUDA : DEVICE_CPU;
    if (cuda) info("device: auto -> cuda (%d found)", backend_devices(cuda));
}

static const char *device_name(const struct config *c) {
    return c->device == DEVICE_CPU ? "cpu" : c->device == DEVICE_REF ? "ref" : "cuda";
}

void device_resolve(struct config *c) {
    resolve_auto(c);
    char *of_cuda = c->device == DEVICE_CUDA ? NULL : config_reset_section(c, "cuda");
    if (of_cuda)
        warn("%s: this run computes on device %s, where the section cuda has no effect: ignored", of_cuda,
             device_name(c));
    free(of_cuda);
    if (c->device == DEVICE_CPU || c->cpu_kernel == CPU_KERNEL_AUTO) return;
    warn("cpu.kernel %s: this run computes on device %s, where it has no effect: ignored",
         cpu_kernel_name(c->cpu_kernel), device_name(c));
    c->cpu_kernel = CPU_KERNEL_AUTO;
}

int cpu_kernel_choose(struct config *c) {
    const char *why = "";
    if (c->device != DEVICE_CPU) return 0;
    if (cpu_kernel_resolve(c->cpu_kernel, c->dtype, &c->cpu_kernel, &why) == 0) return 0;
    return fail("cpu.kernel %s: %s; --set cpu.kernel=fma takes every type on every machine",
                cpu_kernel_name(CPU_KERNEL_PAIRS), why);
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
