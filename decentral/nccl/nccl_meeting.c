#include "decentral/nccl/nccl_meeting.h"

#include <stdlib.h>
#include <string.h>

#include "shared/core/error.h"

struct nccl_meeting {
    struct device *cpu;
    struct stream *stream;
    struct collective *under;
};

int nccl_meeting_share(struct nccl_meeting *m, int root, void *bytes, size_t size) {
    void *buf = dev_alloc(m->cpu, MEM_COMM, size);
    if (!buf) return fail("NCCL's rendezvous: no memory for %zu bytes", size);
    memcpy(buf, bytes, size);
    collective_broadcast(m->under, m->stream, buf, size, DT_U8, root);
    int rc = stream_sync(m->stream);
    if (rc == 0)
        memcpy(bytes, buf, size);
    else
        fail("NCCL's rendezvous: %s", collective_error(m->under));
    dev_free(m->cpu, MEM_COMM, buf, size);
    return rc;
}

void nccl_meeting_abort(struct nccl_meeting *m, const char *why) { collective_abort(m->under, why); }

const char *nccl_meeting_aborted(struct nccl_meeting *m) { return collective_aborted(m->under); }

int nccl_meeting_open(struct nccl_meeting **out, const struct collective_source *under, double deadline_s) {
    const char *why = "";
    struct nccl_meeting *m = xcalloc(1, sizeof *m);
    *out = NULL;
    const struct backend *cpu = backend_find("cpu", &why);
    if (!cpu ||
        dev_open(cpu, &(struct device_options){.threads = 1, .label = "nccl rendezvous"}, &m->cpu) != 0) {
        free(m);
        return fail("NCCL's rendezvous: cannot open the cpu device %s", why);
    }
    m->stream = stream_create(m->cpu, "rendezvous");
    if (m->stream)
        m->under = collective_create(under, 0,
                                     &(struct collective_options){.control = true, .deadline_s = deadline_s});
    if (!m->under) {
        fail("NCCL's rendezvous: %s collectives cannot be created", under->kind->name);
        nccl_meeting_close(&m);
        return -1;
    }
    *out = m;
    return 0;
}

void nccl_meeting_close(struct nccl_meeting **meeting) {
    struct nccl_meeting *m = *meeting;
    if (!m) return;
    collective_destroy(&m->under);
    if (m->stream) stream_destroy(&m->stream);
    dev_close(&m->cpu);
    free(m);
    *meeting = NULL;
}
