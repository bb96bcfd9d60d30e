// What is kept on the host or on disk instead of the device: offload_optimizer and offload_param of zero_optimization
// (DeepSpeed 0.19.6: runtime/zero/offload_config.py), and the words that it deprecates for them.
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shared/config/config_internal.h"
#include "shared/core/error.h"
#include "shared/core/topology_row.h"

static const char optimizer_key[] = "zero_optimization.offload_optimizer",
                  param_key[] = "zero_optimization.offload_param",
                  optimizer_device[] = "zero_optimization.offload_optimizer.device",
                  param_device[] = "zero_optimization.offload_param.device",
                  old_optimizer[] = "zero_optimization.cpu_offload",
                  old_param[] = "zero_optimization.cpu_offload_param";

static int check_folder(const struct reading *r, const char *device, const char *section,
                        const struct offload_config *o) {
    char from[128];
    if (o->device != OFFLOAD_NVME || o->nvme_path) return 0;
    return fail(
        "%s: %s: device \"nvme\" needs a directory to write to, and nvme_path is missing: give it with --set "
        "%s.nvme_path=DIR, or turn it off with --set %s.device=none",
        config_origin(r, device, from), section, section, section);
}

static int check_machine(const char *section, const struct offload_config *o) {
    struct stat st;
    const char *folder = o->nvme_path;
    if (o->device != OFFLOAD_NVME) return 0;
    const char *why = stat(folder, &st)      ? "does not exist"
                      : !S_ISDIR(st.st_mode) ? "is no directory"
                      : access(folder, W_OK) ? "cannot be written"
                                             : NULL;
    if (!why) return 0;
    return fail(
        "%s: device \"nvme\" needs a directory to write to, and nvme_path %s %s: give it with --set %s.nvme_path=DIR, "
        "or turn it off with --set %s.device=none",
        section, folder, why, section, section);
}

int config_check_folders(const struct config *c) {
    int optimizer = check_machine(optimizer_key, &c->offload_optimizer);  // both are said at once
    return check_machine(param_key, &c->offload_param) || optimizer ? -1 : 0;
}

static int check_blocks(const struct reading *r) {
    static const char key[] = "aio.block_size";
    char from[128];
    long long bytes = (long long)r->d->c.aio.block_bytes;
    if (bytes % 4096 == 0) return 0;
    return fail("%s: %s is %lld: a disk's blocks are 4096 bytes, and it must be a multiple of them, as %lld",
                config_origin(r, key, from), key, bytes, (bytes / 4096 + 1) * 4096);
}

// A word of old is "device": "cpu" where no device is named. Given both ways it must be the same twice, unless the command
// line says one of them over the file. *key: whose origin is told. 0, or -1 after fail().
static int translate(const struct reading *r, const char **key, const char *old, bool asked,
                     struct offload_config *o) {
    static const char *const names[] = {"none", "cpu", "nvme"};
    char from[128], old_from[128];
    enum offload_device meant = asked ? OFFLOAD_CPU : OFFLOAD_NONE;
    if (config_state(r, old) == KEY_ABSENT) return 0;
    if (config_state(r, *key) == KEY_ABSENT) {
        if (asked) *key = old;
        o->device = meant;
        return 0;
    }
    bool from_file = config_origin(r, *key, from) == r->file;
    bool old_from_file = config_origin(r, old, old_from) == r->file;
    if (from_file == old_from_file && o->device != meant)
        return fail("%s: %s is %s, the old word for %s \"%s\", and that is \"%s\": leave one of them out",
                    config_origin(r, old, old_from), old, asked ? "true" : "false", *key, names[meant],
                    names[o->device]);
    if (!from_file || old_from_file) return 0;
    *key = old;
    o->device = meant;
    return 0;
}

static int resolve_offload(struct reading *r) {
    struct config *c = &r->d->c;
    struct offload_config *o = &c->offload_optimizer, *p = &c->offload_param;
    const char *optimizer = optimizer_device, *param = param_device;
    char from[128];
    if (translate(r, &optimizer, old_optimizer, r->d->cpu_offload, o) ||
        translate(r, &param, old_param, r->d->cpu_offload_param, p))
        return -1;
    if (check_blocks(r) || check_folder(r, optimizer, optimizer_key, o) ||
        check_folder(r, param, param_key, p))
        return -1;
    bool ring = c->row->takes_stage;
    if (!ring && (o->device || p->device))
        warn(
            "%s: --topology %s keeps its state where its ranks are: offload_optimizer and offload_param of "
            "zero_optimization are of zero:1 to zero:3, and without effect",
            config_origin(r, o->device ? optimizer : param, from), c->topology);
    if (ring && c->variant == 0 && o->device)
        return fail(
            "%s: %s: in stage 0 every rank holds the whole optimizer, and none of it is a rank's own to offload: "
            "use stage 1, 2 or 3, or turn it off with --set %s=none",
            config_origin(r, optimizer, from), optimizer_key, optimizer_device);
    if (ring && c->variant < 3 && p->device)
        config_note(r, &(struct note){.topic = NOTE_STAGE_3, .path = param});
    if (!ring || c->variant < 3) {
        p->device = OFFLOAD_NONE;
        c->prefetch_elements = PREFETCH_AUTO;
        c->live_elements = 0;
        c->hpz = 1;
    }
    // In fp32 the weights are the masters: they lie where these do.
    if (p->device == OFFLOAD_NVME && o->device == OFFLOAD_CPU && c->dtype == DT_F32) {
        p->device = OFFLOAD_CPU;
        warn(
            "%s: %s: fp32 weights are the masters, and lie in host memory with these: nvme for offload_optimizer too "
            "brings both to disk",
            config_origin(r, param, from), param_key);
    }
    if (!ring || o->ratio == 0) o->device = OFFLOAD_NONE;
    if (p->device && (!o->device || o->ratio < 1))
        return fail(
            "%s: %s: the device would keep masters, which are larger than the weights that leave it: offload the whole "
            "optimizer too, with --set %s=cpu and ratio 1, or turn it off with --set %s=none",
            config_origin(r, param, from), param_key, optimizer_device, param_device);
    return 0;
}

// A key whose master switch is off is told so; not its default, which every config.json of a run has.
static void idle(struct reading *r, const char *path, bool used, bool changed) {
    if (!used && changed && config_state(r, path) == KEY_GIVEN)
        config_note(r, &(struct note){.topic = NOTE_NOTHING, .path = path});
}

int config_resolve_offload(struct reading *r) {
    const struct config *c = &r->d->c;
    if (resolve_offload(r)) return -1;
    bool disk = c->offload_optimizer.device == OFFLOAD_NVME || c->offload_param.device == OFFLOAD_NVME;
    idle(r, "aio.block_size", disk, c->aio.block_bytes != 1048576);
    idle(r, "aio.queue_depth", disk, c->aio.depth != 16);
    idle(r, "zero_optimization.offload_optimizer.ratio", c->offload_optimizer.device != OFFLOAD_NONE,
         c->offload_optimizer.ratio != 1);
    idle(r, "tensorboard.output_path", c->tensorboard.enabled, c->tensorboard.output_path != NULL);
    idle(r, "csv_monitor.output_path", c->csv_monitor.enabled, c->csv_monitor.output_path != NULL);
    idle(r, "parameter_server.compression_share", c->ps.code.kind == CODE_TOPK, c->ps.code.share != 0.01);
    return 0;
}
