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

int cpu_kernel_choose(struct config *c) {
    const char *why = "";
    if (c->device != DEVICE_CPU) return 0;
    if (cpu_kernel_resolve(c->cpu_kernel, c->dtype, &c->cpu_kernel, &why) == 0) return 0;
    return fail("cpu.kernel %s: %s; --set cpu.kernel=fma takes every type on every machine",
                cpu_kernel_name(CPU_KERNEL_PAIRS), why);
}

const struct backend *device_backend(const struct config *c) {
    const char *why = "", *name = config_device(c)->name;
    const struct backend *b = backend_find(name, &why);
    if (!b) fail("--device %s: %s", name, why);
    return b;
}

int device_gpus(const struct config *c) {
    const char *why;
    const struct backend *b = config_device(c)->gpu ? backend_find(config_device(c)->name, &why) : NULL;
    return b ? backend_devices(b) : 0;
}
