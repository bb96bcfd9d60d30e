#include "shared/memory/memory_room.h"

#include <stdio.h>

static void read_gpu(const struct backend *b, int index, struct memory_limit *out) {
    struct device_options o = {.threads = 1, .index = index, .label = "memory"};
    struct device *d = NULL;
    struct device_facts facts;
    out->free_bytes = -1;
    snprintf(out->name, sizeof out->name, "GPU %d", index);
    if (dev_open(b, &o, &d)) return;
    if (!dev_facts(d, &facts)) {
        out->free_bytes = (double)facts.free_bytes;
        snprintf(out->name, sizeof out->name, "free memory of GPU %d, %s", index, facts.name);
    }
    dev_close(&d);
}

void memory_room_read(const char *root, const struct config *c, int gpus, struct memory_room *out) {
    const char *why;
    const struct backend *b = gpus ? backend_find(config_device(c)->name, &why) : NULL;
    *out = (struct memory_room){.host_known = !memory_limit_read(root, &out->host), .host = out->host};
    out->gpus = b && config_device(c)->gpu ? gpus : 0;
    out->device.free_bytes = c->device_bytes ? (double)c->device_bytes : -1;
    snprintf(out->device.name, sizeof out->device.name, "memory.device_bytes of each worker");
    for (int i = 0; i < out->gpus; i++) read_gpu(b, i, &out->gpu[i]);
}

bool memory_exceeds(const struct memory_sum *wanted, const struct memory_limit *limit) {
    return limit->free_bytes >= 0 && wanted->predicted_bytes + wanted->allowed_bytes > limit->free_bytes;
}

struct memory_short memory_compare(const struct memory_need *need, const struct memory_room *room) {
    if (memory_exceeds(&need->device, &room->device))
        return (struct memory_short){&room->device, need->device};
    if (room->host_known && memory_exceeds(&need->host, &room->host))
        return (struct memory_short){&room->host, need->host};
    for (int i = 0; i < need->gpus && i < room->gpus; i++)
        if (memory_exceeds(&need->gpu[i], &room->gpu[i]))
            return (struct memory_short){&room->gpu[i], need->gpu[i]};
    return (struct memory_short){0};
}
