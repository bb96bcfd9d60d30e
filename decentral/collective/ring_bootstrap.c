#include "decentral/collective/ring_bootstrap.h"

#include "shared/core/error.h"

int ring_bootstrap_broadcast(struct ring_bootstrap *m, int root, void *bytes, size_t size) {
    collective_broadcast(m->under, m->stream, bytes, size, DT_U8, root);
    return stream_sync(m->stream) ? fail("the ranks' bootstrap: %s", collective_error(m->under)) : 0;
}

int ring_bootstrap_open(struct ring_bootstrap *m, const struct collective_source *under, double deadline_s) {
    const char *why = "";
    const struct backend *cpu = backend_find("cpu", &why);
    if (!cpu || dev_open(cpu, &(struct device_options){.threads = 1, .label = "ranks' bootstrap"}, &m->cpu))
        return fail("the ranks' bootstrap: cannot open the cpu device %s", why);
    m->stream = stream_create(m->cpu, "bootstrap");
    if (m->stream)
        m->under = collective_create(under, 0,
                                     &(struct collective_options){.control = true, .deadline_s = deadline_s});
    if (m->under) return 0;
    ring_bootstrap_close(m);
    return fail("the ranks' bootstrap: %s collectives cannot be created", under->kind->name);
}

void ring_bootstrap_close(struct ring_bootstrap *m) {
    collective_destroy(&m->under);
    stream_destroy(&m->stream);
    dev_close(&m->cpu);
}
