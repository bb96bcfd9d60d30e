// The loss scaler and the schedules against DeepSpeed's own classes: tests/make_deepspeed.py ran them and
// wrote tests/data/deepspeed, with the version in its first line.
#include "tests/config/config_helper.h"

#include <math.h>

#define DATA      "tests/data/deepspeed/"
#define LINE_ROOM 8192

// The next line of the file that starts with `word` and a space: what follows. NULL at the end of the file.
static char *next(FILE *f, const char *word, char line[LINE_ROOM]) {
    size_t n = strlen(word);
    while (fgets(line, LINE_ROOM, f)) {
        line[strcspn(line, "\n")] = 0;
        if (!strncmp(line, word, n) && line[n] == ' ') return line + n + 1;
    }
    return NULL;
}

static FILE *open_data(const char *name) {
    char path[128], line[LINE_ROOM];
    snprintf(path, sizeof path, DATA "%s", name);
    FILE *f = fopen(path, "r");
    if (!f) fail_msg("%s: cannot be read", path);
    assert_non_null(fgets(line, sizeof line, f));
    assert_non_null(strstr(line, "DeepSpeed 0.19.6"));
    return f;
}

// Runs `steps` and holds the scaler to the trace: "65536/2*1000 131072/2*3 end*1".
static void follow(const struct scaler_config *c, const char *steps, char *trace) {
    struct scaler s;
    scaler_init(&s, c);
    int64_t at = 0;
    for (char *run = strtok(trace, " "); run; run = strtok(NULL, " ")) {
        long count = strtol(strchr(run, '*') + 1, NULL, 10);
        *strchr(run, '*') = 0;
        for (; count > 0; count--, at++) {
            char got[64];
            assert_true(steps[at]);
            int rc = scaler_update(&s, c, steps[at] == 'x');
            snprintf(got, sizeof got, rc ? "end" : "%.17g/%d", s.scale, s.hysteresis_left);
            if (strcmp(got, run))
                fail_msg(
                    "window %d, hysteresis %d, consecutive %d, minimum %g, steps %s: step %lld: %s, "
                    "DeepSpeed %s",
                    c->window, c->hysteresis, c->consecutive_hysteresis, c->min_scale, steps,
                    (long long)at + 1, got, run);
        }
    }
    assert_int_equal(steps[at], 0);
}

static void test_loss_scaler(void **state) {
    (void)state;
    FILE *f = open_data("scaler.txt");
    char line[LINE_ROOM], step_line[LINE_ROOM], trace_line[LINE_ROOM];
    int cases = 0, ended = 0;
    error_quiet(1);
    for (const char *p; (p = next(f, "case", line)); cases++) {
        struct scaler_config c = {.enabled = true};
        int consecutive;
        assert_int_equal(sscanf(p, "%d %d %d %lf %d", &c.window, &c.hysteresis, &consecutive, &c.min_scale,
                                &c.initial_power),
                         5);
        c.consecutive_hysteresis = consecutive;
        const char *steps = next(f, "steps", step_line);
        char *trace = next(f, "trace", trace_line);
        assert_true(steps && trace);
        ended += strstr(trace, "end") != NULL;
        follow(&c, steps, trace);
    }
    error_quiet(0);
    fclose(f);
    assert_true(cases >= 20 && ended >= 3 && ended < cases);
}

// "0.5 WarmupLR warmup_num_steps=10 warmup_type=log" as a configuration.
static struct config *configured(char *words) {
    char text[1024], *p = text;
    char *lr = strtok(words, " "), *type = strtok(NULL, " ");
    p += sprintf(
        p, "{\"optimizer\": {\"params\": {\"lr\": %s}}, \"scheduler\": {\"type\": \"%s\", \"params\": {", lr,
        type);
    const char *separator = "";
    for (char *word = strtok(NULL, " "); word; word = strtok(NULL, " ")) {
        char *value = strchr(word, '=');
        *value++ = 0;
        bool number = strspn(value, "0123456789.e-") == strlen(value);
        bool flag = !strcmp(value, "true") || !strcmp(value, "false");
        p += sprintf(p, number || flag ? "%s\"%s\": %s" : "%s\"%s\": \"%s\"", separator, word, value);
        separator = ", ";
    }
    strcpy(p, "}}}");
    return accept(text);
}

// The betas of each update; one pair stands for all.
static void check_betas(const struct optimizer_config *c, const char *at, const char *about) {
    bool moves = c->cycle.type != SCHEDULE_NONE;
    int64_t updates = 0;
    for (char *end; *at; at = end, updates++) {
        double first = strtod(at, &end), second = strtod(end, &end);
        double got1 = moves ? schedule_beta1(&c->cycle, updates) : c->beta1;
        double got2 = moves ? SCHEDULE_CYCLE_BETA2 : c->beta2;
        if (!(fabs(got1 - first) <= 2e-7) || !(fabs(got2 - second) <= 2e-7))
            fail_msg("%s: %lld updates: betas %.9g %.9g, DeepSpeed has %.9g %.9g", about, (long long)updates,
                     got1, got2, first, second);
    }
    assert_int_equal(updates, moves ? 45 : 1);
}

// Through the configuration, so that the defaults of absent parameters are DeepSpeed's, too.
static void test_schedules(void **state) {
    (void)state;
    FILE *f = open_data("schedules.txt");
    char line[LINE_ROOM], about[LINE_ROOM], values[LINE_ROOM];
    int cases = 0, moving = 0;
    for (char *p; (p = next(f, "case", line)); cases++) {
        snprintf(about, sizeof about, "%s", p);
        struct config *c = configured(p);
        char *at = next(f, "lr", values);
        assert_non_null(at);
        int64_t updates = 0;
        for (char *end; *at; at = end, updates++) {
            double want = strtod(at, &end), got = schedule_lr(&c->schedule, c->optimizer.lr, updates);
            if (end == at || !(fabs(got - want) <= 2e-7 * want + 1e-12))
                fail_msg("%s: %lld updates: %.9g, DeepSpeed has %.9g", about, (long long)updates, got, want);
        }
        // Beyond the end of the longest schedule, where a cosine that is not held climbs again.
        assert_int_equal(updates, 45);
        check_betas(&c->optimizer, next(f, "betas", values), about);
        moving += c->optimizer.cycle.type != SCHEDULE_NONE;
        config_destroy(&c);
    }
    fclose(f);
    assert_true(cases >= 35 && moving >= 10);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_loss_scaler),
        cmocka_unit_test(test_schedules),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
