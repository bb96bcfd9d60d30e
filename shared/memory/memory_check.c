#include "shared/memory/memory_check.h"

#include <stdlib.h>

#include "shared/config/json.h"
#include "shared/core/error.h"
#include "shared/core/text.h"
#include "shared/device/device_choice.h"
#include "shared/memory/memory_advice.h"
#include "shared/memory/memory_room.h"

// ---------------------------------------------------------------- words
static char *figures(const struct memory_short *s, const char *what) {
    char all[24], predicted[24], allowed[24], left[24];
    format_bytes(all, s->wanted.predicted_bytes + s->wanted.allowed_bytes);
    format_bytes(predicted, s->wanted.predicted_bytes);
    format_bytes(allowed, s->wanted.allowed_bytes);
    format_bytes(left, s->limit->free_bytes);
    return xasprintf(
        "%s needs %s here (%s predicted, %s allowed for program, "
        "libraries, loading, frames and records), and %s are left (%s)",
        what, all, predicted, allowed, left, s->limit->name);
}

// "worker 0 needs 7.00 GiB of its device (master 3.00 GiB, ..), and memory.device_bytes allows 6.00 GiB"
static char *device_figures(const struct memory_short *s, const struct memory_need *n) {
    char all[24], one[24], limit[24];
    char *classes = xstrdup("");
    for (int c = 0; c < MEM_CLASSES; c++) {
        if (!n->device_classes[c] || mem_class_beside((enum mem_class)c)) continue;
        char *more = xasprintf("%s%s%s %s", classes, *classes ? ", " : "", mem_class_name((enum mem_class)c),
                               format_bytes(one, (double)n->device_classes[c]));
        free(classes);
        classes = more;
    }
    char *text = xasprintf(
        "worker %d needs %s (%.0f bytes) of its device (%s), and memory.device_bytes (--device-memory) allows %s (%.0f bytes)",
        n->device_rank, format_bytes(all, s->wanted.predicted_bytes), s->wanted.predicted_bytes, classes,
        format_bytes(limit, s->limit->free_bytes), s->limit->free_bytes);
    free(classes);
    return text;
}

static int device_answer(const struct config *c, const struct memory_short *s, const struct memory_need *n,
                         const char *advice) {
    char program[PROGRAM_WORD], *text = device_figures(s, n), *model = shell_word(c->model);
    int rc = 0;
    if (c->memory_check == MEMORY_CHECK_OFF)
        warn("%s; memory.check is off: the device will refuse what goes beyond", text);
    else
        rc = fail(
            "%s\n%s  %s plan --model %s --workers %d --seq %lld --dtype %s --device-memory %lld names the offloads and "
            "recomputation that fit, fastest first",
            text, advice, program_word(program), model, c->workers, (long long)c->seq, dtype_name(c->dtype),
            (long long)c->device_bytes);
    free(model);
    free(text);
    return rc;
}

static int answer(const struct config *c, const struct memory_short *s, const char *what,
                  const char *advice) {
    if (!s->limit) return 0;
    char *text = figures(s, what);
    int rc = 0;
    if (c->memory_check == MEMORY_CHECK_OFF)
        warn("%s; memory.check is off: the system may end it", text);
    else
        rc = fail("%s\n%s  --set memory.check=off starts it all the same", text, advice);
    free(text);
    return rc;
}

int memory_check(const struct config *c, const struct memory_need *need, const char *what) {
    struct memory_room room;
    memory_room_read("", c, need->gpus, &room);
    struct memory_short s = memory_compare(need, &room);
    return answer(c, &s, what, "");
}

// What a part of the job needs, and what this machine has for it.
struct outlook {
    struct memory_part here;  // the part, with this machine's GPUs counted
    struct memory_need need;
    struct memory_room room;
};

static int look(const struct job *j, const struct memory_part *part, struct outlook *o) {
    o->here = *part;
    o->here.gpus = device_gpus(j->config);
    if (memory_need_of(j, &o->here, &o->need)) return -1;
    memory_room_read("", j->config, o->need.gpus, &o->room);
    return 0;
}

int memory_check_run(const struct job *j, const struct memory_part *part) {
    struct outlook o;
    if (look(j, part, &o)) return -1;
    struct memory_short s = memory_compare(&o.need, &o.room);
    if (!s.limit) return 0;
    char *advice = j->config->memory_check == MEMORY_CHECK_OFF
                       ? NULL
                       : memory_advice(&(struct memory_question){j, &o.here, &o.room});
    int rc = s.limit == &o.room.device ? device_answer(j->config, &s, &o.need, advice)
                                       : answer(j->config, &s, "the run", advice);
    free(advice);
    return rc;
}

// ---------------------------------------------------------------- --dry-run
static void put_one(cJSON *list, const struct memory_sum *wanted, const struct memory_limit *limit) {
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "limit", limit->name);
    cJSON_AddNumberToObject(o, "predicted_bytes", wanted->predicted_bytes);
    cJSON_AddNumberToObject(o, "allowed_bytes", wanted->allowed_bytes);
    cJSON_AddNumberToObject(o, "available_bytes", limit->free_bytes);
    cJSON_AddBoolToObject(o, "fits", !memory_exceeds(wanted, limit));
    cJSON_AddItemToArray(list, o);
}

int memory_check_put(struct cJSON *doc, const struct job *j, const struct memory_part *part) {
    struct outlook seen;
    if (look(j, part, &seen)) return -1;
    cJSON *o = cJSON_AddObjectToObject(doc, "here"), *limits = cJSON_AddArrayToObject(o, "limits");
    if (seen.room.device.free_bytes >= 0) put_one(limits, &seen.need.device, &seen.room.device);
    if (seen.room.host_known) put_one(limits, &seen.need.host, &seen.room.host);
    for (int i = 0; i < seen.need.gpus && i < seen.room.gpus; i++)
        if (seen.room.gpu[i].free_bytes >= 0) put_one(limits, &seen.need.gpu[i], &seen.room.gpu[i]);
    cJSON_AddBoolToObject(o, "fits", !memory_compare(&seen.need, &seen.room).limit);
    // A prediction may be for another machine, which has the data.
    json_put_text(o, "missing", job_opens(j->config, j) ? NULL : error_last());
    error_clear();
    return 0;
}

void memory_check_print(FILE *f, const struct cJSON *doc) {
    const cJSON *one, *here = json_item(doc, "here");
    char a[24], b[24], c[24];
    fputs("\nAll ranks on this machine:\n", f);
    cJSON_ArrayForEach(one, json_item(here, "limits")) {
        fprintf(f, "  %s predicted + %s allowed for what the ledger does not count, %s left (%s): %s\n",
                format_bytes(a, json_number(one, "predicted_bytes")),
                format_bytes(b, json_number(one, "allowed_bytes")),
                format_bytes(c, json_number(one, "available_bytes")), json_text(one, "limit", ""),
                cJSON_IsTrue(json_item(one, "fits")) ? "fits" : "does not fit");
    }
    const char *missing = json_text(here, "missing", NULL);
    if (missing) fprintf(f, "  it would not start here: %s\n", missing);
}
