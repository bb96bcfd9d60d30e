#include "kernels/queue/trace.h"

#include <stdio.h>
#include <stdlib.h>

void trace_keep(struct trace_list *l, const struct trace_span *span) {
    if (l->count == l->capacity) {
        size_t want = l->capacity ? 2 * l->capacity : 4096;
        struct trace_span *p = want > TRACE_SPANS_MAX ? NULL : realloc(l->spans, want * sizeof *p);
        if (!p) {
            l->dropped++;
            return;
        }
        l->spans = p;
        l->capacity = want;
    }
    l->spans[l->count++] = *span;
}

void trace_free(struct trace_list *l) {
    free(l->spans);
    *l = (struct trace_list){0};
}

static void json_string(FILE *f, const char *text) {
    fputc('"', f);
    for (const unsigned char *p = (const unsigned char *)text; *p; p++) {
        if (*p == '"' || *p == '\\')
            fprintf(f, "\\%c", *p);
        else if (*p < 0x20)
            fprintf(f, "\\u%04x", *p);
        else
            fputc(*p, f);
    }
    fputc('"', f);
}

static void metadata(FILE *f, const char *what, int pid, int tid, const char *name) {
    fprintf(f, "{\"ph\":\"M\",\"name\":\"%s\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":", what, pid, tid);
    json_string(f, name);
    fputs("}}", f);
}

void trace_write_process(void *file, int pid, const char *label) {
    metadata(file, "process_name", pid, 0, label);
}

// Timestamps are microseconds.
void trace_write_thread(void *file, int pid, int tid, const char *name, const struct trace_list *l) {
    static const char *const phases[PHASES] = {"other", "data", "forward", "backward", "optimizer", "comm"};
    FILE *f = file;
    fputs(",\n", f);
    metadata(f, "thread_name", pid, tid, name);
    for (size_t i = 0; i < l->count; i++) {
        const struct trace_span *s = &l->spans[i];
        fputs(",\n{\"ph\":\"X\",\"name\":", f);
        json_string(f, s->name);
        fprintf(f, ",\"cat\":\"%s\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f}",
                s->kind == INTERVAL_WAIT ? "blocked" : phases[s->phase], pid, tid,
                (double)(s->start_ns + l->shift_ns) * 1e-3, (double)s->duration_ns * 1e-3);
    }
    if (l->dropped)
        fprintf(f,
                ",\n{\"ph\":\"M\",\"name\":\"spans_dropped\",\"pid\":%d,\"tid\":%d,\"args\":{\"count\":%zu}}",
                pid, tid, l->dropped);
}
