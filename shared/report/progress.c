#include "shared/report/progress.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>

#include "shared/core/error.h"
#include "shared/core/text.h"
#include "shared/core/topology_row.h"
#include "shared/core/trouble.h"
#include "shared/report/metrics.h"

#define BAR_WIDTH   28
#define BAR_LEAST   5
#define BAR_EVERY_S 0.1

struct progress {
    struct progress_options o;
    int64_t steps, per_print;
    double start_s, drawn_s;
    bool bar_shown;
    bool any;              // a line was printed
    int64_t tokens_since;  // tokens since the last printed line
    double seconds_since;
};

struct progress *progress_create(const struct progress_options *o) {
    struct progress *p = xcalloc(1, sizeof *p);
    p->o = *o;
    p->start_s = now_seconds();
    return p;
}

static void wipe(struct progress *p) {
    if (p->bar_shown) fputs("\r\033[K", p->o.file);
    p->bar_shown = false;
}

// "3:20 left", estimated from the steps done so far.
static const char *time_left(char text[32], const struct progress *p, int64_t step, double now_s) {
    return format_left(
        text, (now_s - p->start_s) / fmax((double)(step - p->o.first), 1) * (double)(p->steps - step));
}

// A wrapped line could not be redrawn in place: a narrow terminal gets a short bar, or only the numbers.
static void draw(struct progress *p, int64_t step) {
    double now_s = now_seconds();
    if (!p->o.bar || p->steps <= 0 || (now_s - p->drawn_s < BAR_EVERY_S && step < p->steps)) return;
    p->drawn_s = now_s;
    char left[32], numbers[96], bar[BAR_WIDTH + 4] = "";
    struct winsize size;  // the terminal's present size; 80 columns if unknown
    int room = (!ioctl(fileno(p->o.file), TIOCGWINSZ, &size) && size.ws_col > 0 ? size.ws_col : 80) - 1;
    room -= snprintf(numbers, sizeof numbers, "%lld/%lld  %3.0f%%  %s", (long long)step, (long long)p->steps,
                     100.0 * (double)step / (double)p->steps, time_left(left, p, step, now_s));
    int width = room - 3 < BAR_WIDTH ? room - 3 : BAR_WIDTH;
    if (width >= BAR_LEAST) {
        memset(bar, '.', (size_t)width + 1);
        memset(bar + 1, '#', (size_t)(width * step / p->steps));
        bar[0] = '[';
        memcpy(bar + 1 + width, "] ", 3);
    }
    fprintf(p->o.file, "\r\033[K%s%.*s", bar, room < 0 ? (int)strlen(numbers) + room : -1, numbers);
    fflush(p->o.file);
    p->bar_shown = true;
}

void progress_start(struct progress *p, const struct config *c, const struct model_spec *s,
                    const struct layout *l) {
    char count[96];
    p->steps = c->steps;
    p->per_print = c->steps_per_print > 0 ? c->steps_per_print : 1;
    p->start_s = now_seconds();
    fprintf(p->o.file, "%s: %s, %s, %s, %d worker%s", s->name, format_params(count, l->params, l->frozen),
            dtype_name(c->dtype), c->topology, c->workers, c->workers == 1 ? "" : "s");
    int servers = config_ranks(c, "server");
    if (servers) fprintf(p->o.file, ", %d server%s", servers, servers == 1 ? "" : "s");
    const char *most = c->documents == DOCUMENTS_WHOLE ? "up to " : "";
    fprintf(p->o.file, "; %s%s tokens per step (%d x %lld x %lld x %s%lld)\n", most,
            format_count(count, c->train_batch * c->seq), c->workers, (long long)c->accumulation,
            (long long)c->micro_batch, most, (long long)c->seq);
    if (c->row->admission) fprintf(p->o.file, "security %s\n", c->row->admission(c));
    if (p->o.first > 0) fprintf(p->o.file, "resumes after step %lld\n", (long long)p->o.first);
    char *trouble = trouble_text(c->straggle, c->delay), *fault = message_fault_text(c->fault);
    if (trouble) fprintf(p->o.file, "trouble: %s\n", trouble);
    if (fault) fprintf(p->o.file, "trouble: %s\n", fault);
    free(trouble);
    free(fault);
    const char *unskipped = c->row->unskipped ? c->row->unskipped(c) : NULL;
    if (c->clip == 0)
        fprintf(p->o.file, "no gradient clipping%s%s\n", unskipped ? ": " : "", unskipped ? unskipped : "");
    else
        fprintf(p->o.file, "gradient clipping %.3g%s\n", (double)c->clip, c->clip == 1 ? ".0" : "");
    fflush(p->o.file);
}

void progress_step(struct progress *p, const struct step_record *r) {
    p->tokens_since += r->tokens;
    p->seconds_since += r->seconds;
    int64_t place = r->place ? r->place : r->step;
    if (!p->any || place == p->steps || r->step % p->per_print == 0) {
        p->any = true;
        char memory[24], rate[32], left[32], norm[16] = "-";
        wipe(p);
        if (isfinite(r->grad_norm)) snprintf(norm, sizeof norm, "%.3f", r->grad_norm);
        double per_s = p->seconds_since > 0 ? (double)p->tokens_since / p->seconds_since : 0;
        fprintf(p->o.file, "step %4lld/%lld  loss %7.4f  norm %6s  lr %.2e  %7s tok/s  %s", (long long)place,
                (long long)p->steps, r->loss, norm, r->lr, format_count(rate, (int64_t)per_s),
                format_bytes(memory, (double)r->memory_bytes));
        if (r->loss_scale != 1) fprintf(p->o.file, "  scale %g", r->loss_scale);
        if (place < p->steps) fprintf(p->o.file, "  %s", time_left(left, p, place, now_seconds()));
        if (r->skipped) fputs("  skipped: a gradient was not finite", p->o.file);
        fputc('\n', p->o.file);
        fflush(p->o.file);
        p->tokens_since = 0;
        p->seconds_since = 0;
    }
    draw(p, place);
}

void progress_destroy(struct progress **pp) {
    struct progress *p = *pp;
    if (!p) return;
    wipe(p);
    fflush(p->o.file);
    free(p);
    *pp = NULL;
}
