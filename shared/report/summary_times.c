// Where the time went, of servers too, speed, checkpoints, lives and who was away included: a rank's report and the summary.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/statistics.h"
#include "shared/core/error.h"
#include "shared/core/text.h"
#include "shared/report/metrics.h"
#include "shared/report/run_file.h"
#include "shared/report/run_state.h"
#include "shared/report/summary_impl.h"
#include "shared/state/checkpoint.h"
#include "shared/time/moments.h"

static const char *const names[] = {
    "data", "forward", "backward", "optimizer", "comm_exposed", "comm_overlapped", "wait", "host", "total"};
#define TIMES (sizeof names / sizeof names[0])

void summary_put_rank_times(cJSON *rank, const struct rank_report *r) {
    const struct time_split *t = &r->time;
    const double times[TIMES] = {t->data,      t->forward,      t->backward,
                                 t->optimizer, t->comm_exposed, t->comm_overlapped,
                                 t->wait,      t->host,         t->total};
    cJSON *time = cJSON_AddObjectToObject(rank, "time");
    for (size_t i = 0; i < TIMES; i++) json_put(time, names[i], times[i]);
    json_put(time, "check", r->time_check);
    json_put(time, "clock_error_s", (double)r->clock_error_ns * 1e-9);
    moments_put(rank, r->moments);
}

static bool is_worker(const cJSON *rank) { return !strcmp(json_text(rank, "role", ""), "worker"); }

static void put_peer(cJSON *list, const struct meeting *m, size_t i, double seconds) {
    if (!(seconds > 0)) return;
    cJSON *o = cJSON_CreateObject();
    cJSON_AddItemToArray(list, o);
    json_put_text(o, "role", m->roles[i]);
    json_put(o, "rank", m->ranks[i]);
    json_put(o, "seconds", seconds);
}

static void replace(cJSON *o, const char *name, double value) {
    cJSON_ReplaceItemInObject(o, name, cJSON_CreateNumber(value));
}

// Worker i's times: what was exposed while another rank stood still was waiting for it, and the host's while it did itself.
// all (count): the seconds that workers waited for each rank so far.
static void settle(const struct meeting *m, size_t i, cJSON *time, double *all) {
    const struct moments *own = m->moments[i];
    if (!own) return;
    double *blamed = xcalloc(m->count + 1, sizeof *blamed), moved = 0;
    size_t parts;
    struct blame *list = moments_blame(m->moments, m->count, i, &parts);
    for (size_t k = 0; k < parts; k++) {
        double seconds = (double)(list[k].end - list[k].begin) * 1e-9;
        blamed[list[k].rank] += seconds;
        if (list[k].instead >= 0) blamed[list[k].instead] -= seconds;
    }
    free(list);
    double still = blamed[i], exposed = json_number(time, "comm_exposed");
    blamed[i] = 0;
    cJSON *peers = cJSON_AddArrayToObject(time, "waited_for");
    for (size_t r = 0; r < m->count; r++) {
        double seconds = blamed[r];
        moved += blamed[r];
        bool worker = !strcmp(m->roles[r], "worker");
        if (worker && m->ranks[r] >= 0 && m->ranks[r] < own->ranks) seconds += own->waited[m->ranks[r]];
        put_peer(peers, m, r, seconds);
        all[r] += seconds;
    }
    moved = fmin(moved, exposed);
    still = fmin(still, exposed - moved);
    replace(time, "comm_exposed", exposed - moved - still);
    replace(time, "wait", json_number(time, "wait") + moved);
    replace(time, "host", json_number(time, "host") + still);
    free(blamed);
}

// Which rank was waited for how long, mean over the workers, and how long each rank stood still.
static void put_peers(cJSON *s, cJSON *mean, const struct meeting *m, const double *all, int workers) {
    cJSON *waited = cJSON_AddArrayToObject(mean, "waited_for"),
          *still = cJSON_AddArrayToObject(s, "stood_still");
    for (size_t i = 0; i < m->count; i++) {
        put_peer(waited, m, i, all[i] / workers);
        put_peer(still, m, i, m->moments[i] ? m->moments[i]->stood_still : 0);
    }
}

// Means over workers; of the checks the one that is off most, of the clocks' errors the largest.
void summary_put_times(cJSON *s, const cJSON *ranks) {
    double sum[TIMES] = {0}, check = 1, error = 0;
    int workers = 0;
    size_t next = 0;
    struct meeting *m = meeting_of(ranks);
    double *all = xcalloc(m->count + 1, sizeof *all);
    cJSON *each = cJSON_CreateArray();
    const cJSON *r;
    cJSON_ArrayForEach(r, ranks) {
        size_t at = next++;
        if (!is_worker(r)) continue;
        cJSON *time = cJSON_Duplicate(json_item(r, "time"), 1);
        settle(m, at, time, all);
        double own = json_number(time, "check");
        for (size_t i = 0; i < TIMES; i++) sum[i] += json_number(time, names[i]);
        if (fabs(own - 1) > fabs(check - 1)) check = own;
        error = fmax(error, json_number(time, "clock_error_s"));
        cJSON_AddItemToArray(each, time);
        workers++;
    }
    cJSON *mean = cJSON_AddObjectToObject(s, "time");
    for (size_t i = 0; i < TIMES; i++) json_put(mean, names[i], sum[i] / workers);
    json_put(mean, "check", check);
    json_put(mean, "clock_error_s", error);
    cJSON_AddItemToObject(s, "time_per_rank", each);
    put_peers(s, mean, m, all, workers);
    meeting_free(&m);
    free(all);
}

// Those of at least a hundredth of a step, or of all steps.
static void print_peers(FILE *f, const char *words, const cJSON *list, double least, double per,
                        const char *unit) {
    const cJSON *o;
    bool any = false;
    cJSON_ArrayForEach(o, list) {
        double seconds = json_number(o, "seconds");
        if (!(seconds >= least)) continue;
        fprintf(f, "%s%s %.0f %.2f %s", any ? ", " : words, json_text(o, "role", "-"), json_number(o, "rank"),
                seconds * per, unit);
        any = true;
    }
    if (any) fputc('\n', f);
}

void summary_print_peers(FILE *f, const cJSON *s) {
    const cJSON *time = json_item(s, "time");
    double least = 0.01 * json_number(time, "total");
    print_peers(f, "waited for  ", json_item(time, "waited_for"), least, 1e3 / fmax(summary_own_steps(s), 1),
                "ms");
    print_peers(f, "stood still ", json_item(s, "stood_still"), fmax(least, 0.1), 1, "s");
}

double summary_own_steps(const cJSON *s) {
    double before = json_number(s, "resumed_from");
    return json_number(s, "steps") - (isfinite(before) ? before : 0);
}

// ---------------------------------------------------------------- speed
// Nearest-rank percentile of sorted values.
static double percentile(const double *sorted, int64_t n, double p) {
    return n ? sorted[(int64_t)(p * (double)(n - 1) + 0.5)] : NAN;
}

double summary_rate(const struct metrics_totals *m, double tokens_per_step) {
    int64_t warm = m->steps > 1;  // the first step warms caches and libraries up
    double total_s = warm ? m->later_seconds : m->steps ? m->step_seconds[0] : 0;
    return total_s > 0 ? tokens_per_step * (double)(m->steps - warm) / total_s : NAN;
}

#define SPREAD_LEAST 5  // steps: fewer say nothing about a spread

// (p95 - p5) / median of the steps behind the first, which warms up: what experiments/comparison calls noisy by. Sorts them.
static double spread_of(const struct metrics_totals *m) {
    int64_t n = m->kept - 1;
    if (n < SPREAD_LEAST) return NAN;
    double *later = m->step_seconds + 1;
    sort_ascending(later, (size_t)n);
    double median = 0.5 * (later[(n - 1) / 2] + later[n / 2]);
    return median > 0 ? (percentile(later, n, 0.95) - percentile(later, n, 0.05)) / median : NAN;
}

void summary_put_speed(struct cJSON *s, const struct config *c, const struct metrics_totals *m,
                       const struct run_flops *flops) {
    double spread = spread_of(m);
    json_put(s, "tokens_per_step", (double)(c->train_batch * c->seq));
    summary_put_flops(s, flops);
    if (m->kept) sort_ascending(m->step_seconds, (size_t)m->kept);
    cJSON *step = cJSON_AddObjectToObject(s, "step_seconds");
    json_put(step, "median", percentile(m->step_seconds, m->kept, 0.5));
    json_put(step, "p5", percentile(m->step_seconds, m->kept, 0.05));
    json_put(step, "p95", percentile(m->step_seconds, m->kept, 0.95));
    json_put(step, "spread", spread);
}

// ---------------------------------------------------------------- checkpoints
void summary_put_rank_checkpoints(cJSON *rank, const struct checkpoint_report *r) {
    if (r->written + r->failed == 0) return;
    cJSON *o = cJSON_AddObjectToObject(rank, "checkpoints");
    json_put(o, "written", (double)r->written);
    json_put(o, "failed", (double)r->failed);
    json_put(o, "bytes", r->bytes);
    json_put(o, "seconds_writing", r->seconds_writing);
    json_put(o, "slowed", (double)r->slowed);
    json_put(o, "slowed_seconds", r->slowed_seconds);
    json_put(o, "slowed_most", r->slowed_most);
    json_put_text(o, "why", *r->why ? r->why : NULL);
}

bool summary_unkept(const struct cJSON *summary) {
    return !strcmp(json_text(summary, "state", ""), STATE_UNKEPT);
}

void summary_put_state(cJSON *s, const char *word) {
    cJSON_ReplaceItemInObjectCaseSensitive(s, "state", cJSON_CreateString(word));
}

// Files are written at the same time: the run's bytes are those of all ranks, its seconds those of the slowest. All ranks
// wait for the one that waits longest. Where all steps are done, and nothing is there that could be gone on from, the state
// says so; but not of a star that found them done, and so had nothing to keep.
void summary_put_checkpoints(cJSON *s, const char *dir, const cJSON *ranks) {
    double bytes = 0, seconds = 0, slowed = 0, most = 0;
    const cJSON *r, *first = json_item(cJSON_GetArrayItem(ranks, 0), "checkpoints");
    cJSON_ArrayForEach(r, ranks) {
        const cJSON *own = json_item(r, "checkpoints");
        if (!own) continue;
        bytes += json_number(own, "bytes");
        seconds = fmax(seconds, json_number(own, "seconds_writing"));
        slowed = fmax(slowed, json_number(own, "slowed_seconds"));
        most = fmax(most, json_number(own, "slowed_most"));
    }
    double written = first ? json_number(first, "written") : 0,
           failed = first ? json_number(first, "failed") : 0;
    cJSON *o = cJSON_AddObjectToObject(s, "checkpoints");
    json_put(o, "written", written);
    json_put(o, "failed", failed);
    json_put_text(o, "why", json_text(first, "why", NULL));
    json_put(o, "bytes", bytes);
    json_put(o, "seconds_writing", seconds);
    json_put(o, "bytes_per_second", seconds > 0 ? bytes / seconds : NAN);
    cJSON *step = cJSON_AddObjectToObject(o, "step_slowed_seconds");
    json_put(step, "mean", written + failed > 0 ? slowed / (written + failed) : NAN);
    json_put(step, "max", most);
    bool complete = !strcmp(json_text(s, "state", ""), run_phase_word(RUN_COMPLETE));
    bool due = failed > 0 || summary_own_steps(s) > 0;
    if (complete && due && !written && checkpoint_latest_step(dir) < 0) summary_put_state(s, STATE_UNKEPT);
}

void summary_print_checkpoints(FILE *f, const cJSON *s) {
    char bytes[24], rate[24];
    const cJSON *o = json_item(s, "checkpoints");
    if (!o) return;
    double written = json_number(o, "written"), failed = json_number(o, "failed");
    fprintf(f, "checkpoints %.0f written", written);
    if (failed > 0) fprintf(f, ", %.0f given up", failed);
    if (written > 0)
        fprintf(f, ", %s each at %s/s", format_bytes(bytes, json_number(o, "bytes") / written),
                format_bytes(rate, json_number(o, "bytes_per_second")));
    const cJSON *step = json_item(o, "step_slowed_seconds");
    if (written + failed > 0)
        fprintf(f, "; a step waited %.1f ms for one, at most %.1f ms", json_number(step, "mean") * 1e3,
                json_number(step, "max") * 1e3);
    fputc('\n', f);
}

// ---------------------------------------------------------------- lives
// Of the command's last start, and of those before: steps that a death cost are done again in the same start, but those
// after the last checkpoint of a start that was ended in the next one.
struct lives {
    int start, count, earlier;
    double lost, earlier_lost;
};

static void take_life(struct lives *l, const cJSON *life) {
    double start = json_number(life, "start"), lost = json_number(life, "steps_lost");
    int number = start >= 1 ? (int)start : 1;
    bool first = number != l->start;
    if (first) {
        l->earlier += l->count;
        l->earlier_lost += l->lost + (l->start ? lost : 0);
        l->count = 0;
        l->lost = 0;
        l->start = number;
    } else {
        l->lost += lost;  // NAN: nobody knows
    }
    l->count++;
}

void summary_put_lives(cJSON *s, const char *dir) {
    char *text = run_file_lines(dir, "lives.jsonl"), *rest = text;
    struct lives l = {0};
    for (char *line; text && (line = strsep(&rest, "\n"));) {
        cJSON *life = cJSON_Parse(line);
        if (life) take_life(&l, life);
        cJSON_Delete(life);
    }
    free(text);
    cJSON *o = l.count ? cJSON_AddObjectToObject(s, "lives") : NULL;
    if (!o) return;
    json_put(o, "start", l.start);
    json_put(o, "count", l.count);
    json_put(o, "steps_lost", l.lost);
    json_put(o, "earlier", l.earlier);
    json_put(o, "earlier_steps_lost", l.earlier_lost);
}

static void print_lost(FILE *f, double lost) {
    if (isfinite(lost)) fprintf(f, ", %.0f step%s done again", lost, lost == 1 ? "" : "s");
}

void summary_print_lives(FILE *f, const cJSON *s) {
    const cJSON *o = json_item(s, "lives");
    double count = json_number(o, "count"), earlier = json_number(o, "earlier");
    if (!o || count + earlier < 2) return;
    fprintf(f, "lives       %.0f", count);
    if (count > 1) fprintf(f, ": processes died and the run went back");
    print_lost(f, count > 1 ? json_number(o, "steps_lost") : NAN);
    if (earlier > 0) fprintf(f, "; %.0f before this start of the run", earlier);
    print_lost(f, earlier > 0 ? json_number(o, "earlier_steps_lost") : NAN);
    fprintf(f, " (lives.jsonl)\n");
}

// ---------------------------------------------------------------- who was away
#define AWAY_SAID_MOST 6  // in the table

static cJSON *open_absence(cJSON *list, double worker) {
    cJSON *o;
    cJSON_ArrayForEach(
        o, list) if (json_number(o, "worker") == worker && cJSON_IsNull(json_item(o, "to_step"))) return o;
    return NULL;
}

static void end_absence(cJSON *list, cJSON *o, double to, bool returned) {
    if (to < json_number(o, "from_step")) {
        cJSON_Delete(cJSON_DetachItemViaPointer(list, o));
        return;
    }
    cJSON_ReplaceItemInObject(o, "to_step", cJSON_CreateNumber(to));
    cJSON_ReplaceItemInObject(o, "returned", cJSON_CreateBool(returned));
}

// A line of the file.
static void take_absence(cJSON *list, const cJSON *line, double last) {
    double step = json_number(line, "step"), worker = json_number(line, "worker");
    bool away = cJSON_IsTrue(json_item(line, "away"));
    cJSON *o = open_absence(list, worker);
    if (!isfinite(step) || !isfinite(worker)) return;
    if (o && !away) end_absence(list, o, fmin(step - 1, last), step <= last);
    if (o || !away || step > last) return;
    cJSON_AddItemToArray(list, o = cJSON_CreateObject());
    json_put(o, "worker", worker);
    json_put(o, "from_step", step);
    cJSON_AddNullToObject(o, "to_step");
    cJSON_AddFalseToObject(o, "returned");
    json_put_text(o, "cause", json_text(line, "cause", NULL));
    json_put_text(o, "why", json_text(line, "why", NULL));
}

static cJSON *read_absences(const char *dir, double last, double *missed) {
    char *text = run_file_lines(dir, "away.jsonl"), *rest = text;
    cJSON *list = cJSON_CreateArray(), *o, *next;
    for (char *line; text && (line = strsep(&rest, "\n"));) {
        cJSON *parsed = cJSON_Parse(line);
        if (parsed) take_absence(list, parsed, last);
        cJSON_Delete(parsed);
    }
    free(text);
    for (o = list->child; o; o = next) {
        next = o->next;
        if (cJSON_IsNull(json_item(o, "to_step"))) end_absence(list, o, last, false);
    }
    *missed = 0;
    cJSON_ArrayForEach(o, list) *missed += json_number(o, "to_step") - json_number(o, "from_step") + 1;
    return list;
}

// null where the steps' own lines know of absences that nobody has written down: of a scheduler without the directory.
void summary_put_away(cJSON *s, const char *dir, int64_t workers, const struct metrics_totals *m) {
    double missed, told = (double)(m->steps * workers - m->contributions);
    cJSON *list = read_absences(dir, (double)m->last_step, &missed);
    bool known = !m->contributions || missed == told;
    cJSON_AddItemToObject(s, "away", known ? list : cJSON_CreateNull());
    if (!known) cJSON_Delete(list);
}

void summary_print_away(FILE *f, const cJSON *s) {
    const cJSON *list = json_item(s, "away"), *o;
    int count = cJSON_GetArraySize(list), said = 0;
    if (!count) return;
    fprintf(f, "away        ");
    cJSON_ArrayForEach(o, list) {
        double from = json_number(o, "from_step"), to = json_number(o, "to_step");
        if (said == AWAY_SAID_MOST) break;
        fprintf(f, "%sworker %.0f ", said++ ? ", " : "", json_number(o, "worker"));
        if (!cJSON_IsTrue(json_item(o, "returned")))
            fprintf(f, "from step %.0f on", from);
        else if (from == to)
            fprintf(f, "in step %.0f", from);
        else
            fprintf(f, "in steps %.0f-%.0f", from, to);
        fprintf(f, " (%s)", json_text(o, "cause", "-"));
    }
    if (count > said) fprintf(f, " and %d more (away.jsonl)", count - said);
    fputc('\n', f);
}

// ---------------------------------------------------------------- where a server's time went
static const char *const server_names[] = {"receive", "sum", "hold", "wait", "update", "reply", "total"};
#define SERVER_NAMES (sizeof server_names / sizeof server_names[0])

void summary_put_server_time(struct cJSON *rank, const struct rank_report *r) {
    const struct server_time *t = &r->server_time;
    const double seconds[SERVER_NAMES] = {t->receive, t->sum,   t->hold, t->wait,
                                          t->update,  t->reply, t->total};
    if (!t->threads) return;
    cJSON *item = cJSON_AddObjectToObject(rank, "server_time");
    json_put(item, "threads", t->threads);
    for (size_t i = 0; i < SERVER_NAMES; i++) json_put(item, server_names[i], seconds[i]);
}

void summary_put_server_times(struct cJSON *summary, const struct cJSON *ranks) {
    cJSON *list = NULL;
    const cJSON *r;
    cJSON_ArrayForEach(r, ranks) {
        const cJSON *time = json_item(r, "server_time");
        if (!time) continue;
        if (!list) list = cJSON_AddArrayToObject(summary, "server_time");
        cJSON *one = cJSON_Duplicate(time, 1);
        json_put(one, "rank", json_number(r, "rank"));
        cJSON_AddItemToArray(list, one);
    }
}

void summary_print_server_times(FILE *f, const struct cJSON *summary) {
    const cJSON *r;
    double steps = fmax(summary_own_steps(summary), 1);
    cJSON_ArrayForEach(r, json_item(summary, "server_time")) {
        fprintf(f, "  server %2.0f   ", json_number(r, "rank"));
        for (size_t i = 0; i + 1 < SERVER_NAMES; i++)
            fprintf(f, "%s %.2f%s", server_names[i], json_number(r, server_names[i]) / steps * 1e3,
                    i + 2 < SERVER_NAMES ? ", " : "");
        if (json_number(r, "threads") > 1) fprintf(f, " (%.0f threads added)", json_number(r, "threads"));
        fputc('\n', f);
    }
}
