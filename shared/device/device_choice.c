#include "shared/device/device_choice.h"

#include <stdlib.h>

#include "shared/core/error.h"

void device_resolve(struct config *c) {
    for (int d = DEVICE_AUTO + 1; d < DEVICE_KINDS && c->device == DEVICE_AUTO; d++) {
        const char *why;
        const struct backend *gpu = device_rows[d].gpu ? backend_find(device_rows[d].name, &why) : NULL;
        if (!gpu) continue;
        c->device = (enum device_kind)d;
        info("device: auto -> %s (%d found)", device_rows[d].name, backend_devices(gpu));
    }
    if (c->device == DEVICE_AUTO) c->device = DEVICE_CPU;
    for (int d = 0; d < DEVICE_KINDS; d++) {
        const char *section = device_rows[d].section;
        char *had = section && (int)c->device != d ? config_reset_section(c, section) : NULL;
        if (had)
            warn("%s: this run computes on device %s, where the section %s has no effect: ignored", had,
                 config_device(c)->name, section);
        free(had);
    }
}

// Products of fp32 and fp16 have only one kernel, so a choice would have no effect.
static int cpu_kernel_check(const struct config *c) {
    enum cpu_kernel taken;
    const char *why, *asked = cpu_kernel_name(c->cpu_kernel);
    if (c->cpu_kernel == CPU_KERNEL_AUTO) return 0;
    if (c->dtype != DT_BF16)
        return fail("cpu.kernel %s: it is about products of bf16, and this run's dtype is %s: leave it out",
                    asked, dtype_name(c->dtype));
    if (cpu_kernel_resolve(c->cpu_kernel, &taken, &why) == 0) return 0;
    return fail("cpu.kernel %s: %s: auto takes the fastest way that there is, to the same bits", asked, why);
}

const struct backend *device_backend(const struct config *c) {
    const char *why = "", *name = config_device(c)->name;
    const struct backend *b = backend_find(name, &why);
    if (!b) fail("--device %s: %s", name, why);
    return b && (c->device != DEVICE_CPU || !cpu_kernel_check(c)) ? b : NULL;
}

const char *device_cpu_kernel(const struct config *c) {
    enum cpu_kernel taken = CPU_KERNEL_FMA;
    const char *why;
    if (c->device != DEVICE_CPU) return NULL;
    if (c->dtype == DT_BF16) cpu_kernel_resolve(c->cpu_kernel, &taken, &why);
    return cpu_kernel_name(taken);
}

int device_gpus(const struct config *c) {
    const char *why;
    const struct backend *b = config_device(c)->gpu ? backend_find(config_device(c)->name, &why) : NULL;
    return b ? backend_devices(b) : 0;
}
