// metrics.jsonl, rank reports and their merge into summary.json.
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/ioctl.h>

#include "shared/core/text.h"
#include "shared/report/evals.h"
#include "shared/report/progress.h"
#include "tests/run/summary_helper.h"

static void losses_keep_every_bit(void **state) {
    const char *dir = *state;
    const double losses[] = {0.1, 1.0 / 3, 5.5451774444795623, 1e-300};
    struct metrics *m = metrics_create(dir, 0, &(double){0});
    assert_non_null(m);
    assert_int_equal(metrics_last_step(dir), -1);
    for (int i = 0; i < 4; i++) {
        struct step_record r = record(i + 1, losses[i], 0.5);
        metrics_step(m, &r);
        assert_int_equal(metrics_last_step(dir), i + 1);  // whole lines, at once
    }
    assert_int_equal(metrics_destroy(&m), 0);
    char *text = run_file_read(dir, "metrics.jsonl", false), *line = text;
    for (int i = 0; i < 4; i++, line = strchr(line, '\n') + 1) {
        cJSON *o = cJSON_ParseWithLength(line, (size_t)(strchr(line, '\n') - line));
        assert_memory_equal(&cJSON_GetObjectItem(o, "loss")->valuedouble, &losses[i], sizeof(double));
        assert_true(cJSON_IsNull(cJSON_GetObjectItem(o, "grad_norm")));
        assert_true(cJSON_GetObjectItem(o, "samples")->valuedouble == 4 * (i + 1));
        assert_true(cJSON_GetObjectItem(o, "elapsed")->valuedouble == 5);
        cJSON_Delete(o);
    }
    free(text);
    struct metrics_totals t;
    assert_int_equal(metrics_read(dir, &t), 0);
    assert_int_equal(t.steps, 4);
    assert_int_equal(t.tokens, 512);
    assert_true(t.loss_first == losses[0] && t.loss_last == losses[3] && isnan(t.val_loss) &&
                isnan(t.unigram_entropy));
    metrics_totals_free(&t);
}

static void evaluations_replace_those_of_their_step(void **state) {
    const char *dir = *state;
    struct metrics *m = metrics_create(dir, 0, &(double){0});
    struct evals e;
    struct metrics_totals t;
    assert_int_equal(metrics_destroy(&m), 0);
    assert_int_equal(evals_read(dir, &e), 0);
    assert_int_equal(e.count, 0);
    evals_add(&e, &(struct eval_record){20, 160, 20, 2, 2.5, NAN, 64});
    evals_add(&e, &(struct eval_record){10, 80, 10, 1.5, 9, NAN, 64});
    evals_add(&e, &(struct eval_record){10, 80, 10, 1.5, 0.1, NAN, 64});
    assert_int_equal(evals_write(dir, &e), 0);
    evals_free(&e);
    char *text = run_file_read(dir, "evals.jsonl", false);
    assert_string_equal(text,
                        "{\"step\":10,\"samples\":80,\"updates\":10,\"seconds\":1.5,"
                        "\"val_loss\":0.10000000000000001,\"unigram_entropy\":null,\"tokens\":64}\n"
                        "{\"step\":20,\"samples\":160,\"updates\":20,\"seconds\":2.0,"
                        "\"val_loss\":2.5,\"unigram_entropy\":null,\"tokens\":64}\n");
    free(text);
    assert_int_equal(evals_read(dir, &e), 0);
    assert_true(e.count == 2 && e.all[0].val_loss == 0.1 && e.all[1].samples == 160);
    evals_free(&e);
    assert_int_equal(metrics_read(dir, &t), 0);
    assert_true(t.val_loss == 2.5 && isnan(t.unigram_entropy));
    metrics_totals_free(&t);
    assert_int_equal(run_file_write(dir, "evals.jsonl", "{\"step\":1}\n{\"stop\":2}\n"), 0);
    error_quiet(1);
    assert_int_equal(evals_read(dir, &e), -1);
    assert_non_null(strstr(error_last(), "evals.jsonl: line 2"));
    error_quiet(0);
}

static void broken_lines_are_named(void **state) {
    struct metrics_totals t;
    assert_int_equal(run_file_write(*state, "metrics.jsonl", "{\"step\":1,\"loss\":2}\n{\"step\":2,\"lo"), 0);
    assert_int_equal(metrics_read(*state, &t), 0);
    assert_true(t.torn && t.steps == 1 && t.loss_last == 2);
    assert_int_equal(metrics_last_step(*state), 1);
    metrics_totals_free(&t);
    assert_int_equal(run_file_write(*state, "metrics.jsonl", "{\"step\":1,\"loss\":2}\n{\"step\":2,\"lo\n"),
                     0);
    error_quiet(1);
    assert_int_equal(metrics_read(*state, &t), -1);
    assert_non_null(strstr(error_last(), "line 2"));
    error_quiet(0);
}

static void everything_is_merged(void **state) {
    const char *dir = *state;
    write_run(dir, "ps:async");
    cJSON *s = summary_merge(&topologies, dir);
    assert_non_null(s);
    static const char *const keys[] = {"topology",
                                       "consistency",
                                       "workers",
                                       "servers",
                                       "dtype",
                                       "device",
                                       "params",
                                       "steps",
                                       "tokens_per_step",
                                       "tokens_per_second",
                                       "step_seconds",
                                       "loss",
                                       "weights_hash",
                                       "memory",
                                       "wire",
                                       "time",
                                       "staleness",
                                       "model",
                                       "data",
                                       "seed",
                                       "train_batch_size",
                                       "val_loss",
                                       "unigram_entropy",
                                       "skipped",
                                       "units"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        if (!cJSON_HasObjectItem(s, keys[i])) fail_msg("no %s", keys[i]);
    assert_null(cJSON_GetObjectItem(s, "missing_reports"));
    assert_string_equal(cJSON_GetObjectItem(s, "weights_hash")->valuestring, "0123456789abcdef");
    assert_string_equal(cJSON_GetObjectItem(s, "consistency")->valuestring, "async");
    assert_string_equal(cJSON_GetObjectItem(s, "security")->valuestring, "loopback");
    assert_true(number(s, "steps", NULL) == 5 && number(s, "skipped", NULL) == 1);
    assert_true(number(s, "loss", "first") == 5 && number(s, "loss", "last") == 1);
    double tokens = number(s, "tokens_per_step", NULL);
    assert_true(tokens == number(s, "train_batch_size", NULL) * 32);
    assert_true(number(s, "tokens_per_second", NULL) == 40 * 8 * 32 / 4.5);  // not of worker 0's steps
    double rate = number(s, "tokens_per_second", NULL);
    assert_true(number(s, "flops_per_second", NULL) == rate * 6000);
    assert_true(number(s, "flops_per_second_causal", NULL) == rate * 5000);
    assert_true(number(s, "recomputed_flops_per_token", NULL) == 1500);
    assert_true(number(s, "recomputed_flops_per_token_causal", NULL) == 1000);
    assert_true(number(s, "hardware_flops_per_second", NULL) == rate * 7500);
    assert_true(number(s, "hardware_flops_per_second_causal", NULL) == rate * 6000);
    assert_true(cJSON_IsNull(cJSON_GetObjectItem(s, "mfu_datasheet")));  // not on GPUs
    assert_true(number(s, "step_seconds", "median") == 0.75 && number(s, "step_seconds", "p95") == 9);
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(s, "memory")), 4);
    const cJSON *server = cJSON_GetArrayItem(cJSON_GetObjectItem(s, "memory"), 3);
    assert_string_equal(cJSON_GetObjectItem(server, "role")->valuestring, "server");
    assert_string_equal(cJSON_GetObjectItem(server, "formula")->valuestring, "12P/S");
    assert_true(number(server, "peak", "parameter") == 2048 && number(server, "rank", NULL) == 1);
    assert_true(number(s, "time", "forward") == 1.5);
    assert_true(number(s, "staleness", "mean") == 0.5 && number(s, "staleness", "max") == 2);
    const cJSON *histogram = cJSON_GetObjectItem(cJSON_GetObjectItem(s, "staleness"), "histogram");
    assert_int_equal(cJSON_GetArraySize(histogram), 3);
    assert_true(cJSON_GetArrayItem(histogram, 0)->valuedouble == 12);
    char *text = run_file_read(dir, "summary.json", false);
    cJSON *again = cJSON_Parse(text);
    assert_true(cJSON_Compare(s, again, 1));
    cJSON_Delete(again);
    free(text);
    cJSON_Delete(s);
}

static char *printed(const char *dir, const cJSON *s) {
    FILE *f = tmpfile();
    summary_print(f, dir, s);
    long n = ftell(f);
    char *text = xcalloc((unsigned long)n + 1, 1);
    rewind(f);
    assert_int_equal(fread(text, 1, (size_t)n, f), n);
    fclose(f);
    return text;
}

static void parts_add_up_to_the_mean_step_above_them(void **state) {
    write_run(*state, "ps:async");
    cJSON *s = summary_merge(&topologies, *state);
    char *text = printed(*state, s);
    assert_non_null(
        strstr(text,
               "\nmean step   400.00 ms: forward 300.00, backward 0.00, optimizer 0.00, wait 0.00, "
               "exposed 0.00, host 100.00, data 0.00, and overlapped 0.00\n"));
    free(text);
    cJSON_Delete(s);
}

static void write_gpu_worker(const char *dir, int rank, const char *gpu, const char *bus_id) {
    struct run_facts facts = {
        .params = 1000, .flops = {{6000, 5000}, {1500, 1000}}, .tokens_per_sequence = 32, .data = "a text"};
    struct rank_report w = report("worker", rank);
    w.memory.predicted_bytes[MEM_HOST] = w.peak_bytes[MEM_HOST] = 512;
    w.on_gpu = true;
    w.device = (struct device_facts){
        .sm_version = 90, .memory_bytes = 1 << 30, .driver_version = 13010, .runtime_version = 13000};
    snprintf(w.device.name, sizeof w.device.name, "%s", gpu);
    snprintf(w.device.bus_id, sizeof w.device.bus_id, "%s", bus_id);
    w.device_memory = (struct device_memory){.ledger_bytes = 2048,
                                             .workspace_bytes = 100,
                                             .used_bytes = 10000 + 500 * (size_t)rank,
                                             .free_bytes = 1000 - 500 * (size_t)rank,
                                             .total_bytes = 1 << 30};
    assert_int_equal(summary_write_rank(dir, &w, rank == 0 ? &facts : NULL), 0);
}

// Worker 0 and 1 share a GPU, as the server's report says nothing of any.
static void write_gpu_run(const char *dir) {
    write_run(dir, "ps:sync");
    for (int r = 0; r < 2; r++) write_gpu_worker(dir, r, "some GPU", "0000:01:00.0");
}

static void ranks_that_share_a_gpu_are_added_up(void **state) {
    const char *dir = *state;
    write_gpu_run(dir);
    cJSON *s = summary_merge(&topologies, dir);
    const cJSON *devices = cJSON_GetObjectItem(s, "devices"), *d = cJSON_GetArrayItem(devices, 0);
    assert_int_equal(cJSON_GetArraySize(devices), 1);
    assert_string_equal(cJSON_GetObjectItem(d, "name")->valuestring, "some GPU");
    assert_string_equal(cJSON_GetObjectItem(d, "driver")->valuestring, "13.1");
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(d, "ranks")), 2);
    assert_true(number(d, "ledger_bytes", NULL) == 2 * 2048 && number(d, "workspace_bytes", NULL) == 2 * 100);
    // In use is the device's, not the ranks' to be added.
    assert_true(number(d, "used_bytes", NULL) == 10500 && number(d, "free_bytes", NULL) == 500);
    assert_true(number(d, "other_bytes", NULL) == 10500 - 2 * 2148);
    const cJSON *memory = cJSON_GetObjectItem(s, "memory"), *first = cJSON_GetArrayItem(memory, 0);
    assert_true(number(first, "peak", "pinned") == 512);
    assert_true(number(first, "device", "ledger_bytes") == 2048);
    assert_false(cJSON_HasObjectItem(cJSON_GetArrayItem(memory, 2), "device"));
    char *text = printed(dir, s);
    assert_non_null(
        strstr(text, "in use 0.01 MiB of 1.00 GiB = 4096 B counted + 200 B workspaces + 6204 B context"));
    assert_non_null(strstr(text, "worker 0, worker 1\n"));
    assert_non_null(strstr(text, "pinned: pred. "));  // apart from the device's memory
    assert_non_null(strstr(
        text,
        "  worker   0        2048 B       2048 B         512 B        512 B                0 B        100 B   equal"));
    free(text);
    cJSON_Delete(s);
}

// The denominator of MFU is what all GPUs of the run promise together, each once; of one that is in no
// datasheet, there is none.
static void mfu_is_of_all_gpus(void **state) {
    static const struct {
        const char *second, *bus_id;
        double peak;  // 0: null
    } cases[] = {{"NVIDIA H200", "0000:01:00.0", 989.4e12},
                 {"NVIDIA H200", "0000:02:00.0", 2 * 989.4e12},
                 {"some GPU", "0000:02:00.0", 0}};
    const char *dir = *state;
    write_run(dir, "ps:sync");
    write_gpu_worker(dir, 0, "NVIDIA H200", "0000:01:00.0");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_gpu_worker(dir, 1, cases[i].second, cases[i].bus_id);
        cJSON *s = summary_merge(&topologies, dir);
        char *text = printed(dir, s);
        if (cases[i].peak > 0) {
            double rate = number(s, "tokens_per_second", NULL);
            assert_true(number(s, "mfu_datasheet", NULL) == rate * 6000 / cases[i].peak);
            assert_true(number(s, "mfu_datasheet_causal", NULL) == rate * 5000 / cases[i].peak);
            assert_non_null(strstr(text, "MFU  "));
        } else {
            assert_true(cJSON_IsNull(cJSON_GetObjectItem(s, "mfu_datasheet_causal")));
            assert_null(strstr(text, "MFU  "));
        }
        assert_non_null(strstr(text, "causal attention (a token: " FLOPS_CAUSAL ")\n"));
        free(text);
        cJSON_Delete(s);
    }
}

// Ranks look at different moments: what is counted may be more than what was in use. No number then.
static void an_impossible_difference_is_not_known(void **state) {
    const char *dir = *state;
    write_gpu_run(dir);
    cJSON *s = summary_merge(&topologies, dir), *d = cJSON_GetArrayItem(cJSON_GetObjectItem(s, "devices"), 0);
    cJSON_ReplaceItemInObject(d, "used_bytes", cJSON_CreateNumber(4000));
    char *text = printed(dir, s);
    assert_non_null(strstr(text, "in use 4000 B of 1.00 GiB; 4096 B counted, 200 B workspaces"));
    assert_non_null(strstr(text, "other programs not known\n"));
    assert_true(isnan(device_memory_other(1000, 900, 101)) && device_memory_other(1000, 900, 100) == 0);
    free(text);
    cJSON_Delete(s);
}

// Equal totals of classes that differ are no agreement; nothing is said of GPUs that are not there.
static void memory_agrees_class_by_class(void **state) {
    const char *dir = *state;
    write_run(dir, "zero:2");
    struct rank_report w = report("worker", 1);
    w.memory.predicted_bytes[MEM_GRADIENT] = 512;
    w.peak_bytes[MEM_COMM] = 512;
    assert_int_equal(summary_write_rank(dir, &w, NULL), 0);
    cJSON *s = summary_merge(&topologies, dir);
    char *text = printed(dir, s);
    assert_non_null(
        strstr(text, "  worker   0        2048 B       2048 B                0 B        100 B   equal"));
    assert_non_null(
        strstr(text, "  worker   1        2560 B       2560 B                0 B        100 B   DIFFERENT"));
    assert_null(strstr(text, "pinned: pred."));
    assert_null(strstr(text, "GPU"));
    assert_false(cJSON_HasObjectItem(s, "devices"));
    free(text);
    cJSON_Delete(s);
}

static void missing_ranks_are_named(void **state) {
    const char *dir = *state;
    write_run(dir, "ps:sync");
    char *path = xasprintf("%s/ranks/server-1.json", dir);
    assert_int_equal(unlink(path), 0);
    free(path);
    error_quiet(1);
    cJSON *s = summary_merge(&topologies, dir);
    error_quiet(0);
    const cJSON *missing = cJSON_GetObjectItem(s, "missing_reports");
    assert_int_equal(cJSON_GetArraySize(missing), 1);
    assert_string_equal(cJSON_GetArrayItem(missing, 0)->valuestring, "ranks/server-1.json");
    cJSON_Delete(s);
}

static void ring_has_a_stage(void **state) {
    const char *dir = *state;
    write_run(dir, "zero:2");
    cJSON *s = summary_merge(&topologies, dir);
    assert_true(number(s, "stage", NULL) == 2);
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(s, "memory")), 2);
    const cJSON *first = cJSON_GetArrayItem(cJSON_GetObjectItem(s, "memory"), 0);
    assert_string_equal(cJSON_GetObjectItem(first, "formula")->valuestring, "2P+14P/N");
    cJSON_Delete(s);
}

static void people_read_numbers(void **state) {
    (void)state;
    char b[24], c[32];
    int64_t bytes = 0;
    static const struct {
        const char *text;
        int64_t bytes;
    } sizes[] = {{"4096", 4096},       {"64K", 65536},      {"16m", 16 << 20},   {"6GiB", 6LL << 30},
                 {"1024T", 1LL << 50}, {"6GB", 6000000000}, {"1gb", 1000000000}, {"1.5GiB", 3LL << 29},
                 {"1Gi", 1 << 30},     {"1gib", 1 << 30},   {"1 GiB", 1 << 30},  {"1e9", 1000000000},
                 {".5K", 512},         {"512B", 512},       {"2 kB", 2000}};
    for (int i = 0; i < 15; i++) {
        assert_int_equal(text_bytes(sizes[i].text, &bytes), 0);
        assert_int_equal(bytes, sizes[i].bytes);
    }
    static const char *const none[] = {"",      "0",   "-1",  "+1",  " 1",  "6GiBs", "6Gb/s", "6GiB ",
                                       "1025T", "1.5", "0x8", "inf", "nan", "G",     "6 G B", ".1B"};
    for (int i = 0; i < 16; i++) assert_int_equal(text_bytes(none[i], &bytes), -1);
    char p[96];
    assert_string_equal(format_params(p, 124439808, 0), "124,439,808 parameters");
    assert_string_equal(format_params(p, 294912, 124439808), "294,912 of 124,734,720 parameters trained");
    assert_string_equal(format_bytes(b, 0), "0 B");
    assert_string_equal(format_bytes(b, 999), "999 B");
    assert_string_equal(format_bytes(b, 9999), "9999 B");
    assert_string_equal(format_bytes(b, 10000), "0.01 MiB");
    assert_string_equal(format_bytes(b, 1234567), "1.18 MiB");
    assert_string_equal(format_bytes(b, 999.4 * (1 << 20)), "999 MiB");
    assert_string_equal(format_bytes(b, 1000.0 * (1 << 20)), "0.98 GiB");
    assert_string_equal(format_bytes(b, 31.4e9), "29.2 GiB");
    assert_string_equal(format_bytes(b, 31406948352 - 1024), "29.2 GiB");  // just below 29.25
    assert_string_equal(format_bytes(b, 31406948352 + 1024), "29.3 GiB");  // just above
    assert_string_equal(format_bytes(b, 120e9), "112 GiB");
    assert_string_equal(format_bytes(b, 2048.0 * (1 << 30)), "2.00 TiB");
    assert_string_equal(format_count(c, 1234567), "1,234,567");
    assert_string_equal(format_count(c, -123), "-123");
    assert_string_equal(format_count(c, 12), "12");
}

// A step line fits 80 columns, a bar the width of its terminal.
static void lines_fit_the_terminal(void **state) {
    (void)state;
    char text[4096] = "", name[64];
    int wide = posix_openpt(O_RDWR | O_NOCTTY);
    assert_true(wide >= 0 && !grantpt(wide) && !unlockpt(wide) && !ptsname_r(wide, name, sizeof name));
    int end = open(name, O_RDWR | O_NOCTTY);
    struct winsize size = {.ws_row = 24, .ws_col = 40};
    assert_int_equal(ioctl(end, TIOCSWINSZ, &size), 0);
    FILE *f = fdopen(end, "w");
    struct progress *p = progress_create(&(struct progress_options){.file = f, .bar = true});
    struct config c = {
        .steps = 3000, .steps_per_print = 10, .topology = "local", .row = &topology_local, .workers = 1};
    struct model_spec spec = {.name = "tiny"};
    progress_start(p, &c, &spec, &(struct layout){.params = 1});
    struct step_record r = {.step = 1000,
                            .loss = 5.25,
                            .grad_norm = 14.123,
                            .lr = 1e-3,
                            .loss_scale = 1,
                            .tokens = 84000,
                            .seconds = 1,
                            .memory_bytes = 4370000};
    progress_step(p, &r);
    // Output may arrive in pieces: the line, which names the rest, too, and then the bar.
    struct pollfd arrives = {.fd = wide, .events = POLLIN};
    const char *begun;
    for (size_t have = 0;
         (!(begun = strstr(text, "\033[K[")) || !strstr(begun, "left")) && poll(&arrives, 1, 5000) > 0;) {
        ssize_t n = read(wide, text + have, sizeof text - 1 - have);
        assert_true(n > 0);
        have += (size_t)n;
    }
    const char *line = strstr(text, "step "), *bar = strstr(text, "\033[K[");
    assert_non_null(line);
    assert_non_null(bar);
    assert_true(strcspn(line, "\r\n") < 80);
    assert_non_null(strstr(bar, "left"));
    assert_true(strlen(bar + 3) < 40);
    progress_destroy(&p);
    fclose(f);
    close(wide);
}

// Whether gradients are clipped, and by how much, stands before the first step.
static void the_header_tells_the_clipping(void **state) {
    (void)state;
    static const struct {
        float clip;
        const char *line;
    } cases[] = {
        {1, "\ngradient clipping 1.0\n"},
        {0.25f, "\ngradient clipping 0.25\n"},
        {0, "\nno gradient clipping\n"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *text = NULL;
        size_t bytes;
        FILE *f = open_memstream(&text, &bytes);
        struct progress *p = progress_create(&(struct progress_options){.file = f});
        struct config c = {
            .steps = 1, .topology = "local", .row = &topology_local, .workers = 1, .clip = cases[i].clip};
        progress_start(p, &c, &(struct model_spec){.name = "tiny"}, &(struct layout){.params = 1});
        progress_destroy(&p);
        fclose(f);
        assert_non_null(strstr(text, cases[i].line));
        free(text);
    }
}

// The members that may join a star are printed before its first step; for other topologies they are not asked.
static void the_header_tells_who_may_join(void **state) {
    (void)state;
    static const struct {
        const struct topology_row *row;
        struct security_config security;
        const char *line;
        const char *bind;
    } cases[] = {
        {&topology_star, {0}, "\nsecurity loopback: ", NULL},
        {&topology_star, {0}, "\nsecurity loopback: ", "tcp://127.0.0.1:*"},
        {&topology_star, {0}, "\nsecurity job: ", "tcp://10.77.0.1:*"},
        {&topology_star,
         {.insecure = true},
         "\nsecurity insecure: ANYBODY WHO REACHES THE PORTS CAN JOIN",
         NULL},
        {&topology_local, {0}, NULL, NULL},
        {&topology_zero, {0}, NULL, NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *text = NULL;
        size_t bytes;
        FILE *f = open_memstream(&text, &bytes);
        struct progress *p = progress_create(&(struct progress_options){.file = f});
        struct config c = {.steps = 1,
                           .topology = "local",
                           .row = cases[i].row,
                           .workers = 1,
                           .ps.bind = (char *)cases[i].bind,
                           .security = cases[i].security};
        progress_start(p, &c, &(struct model_spec){.name = "tiny"}, &(struct layout){.params = 1});
        progress_destroy(&p);
        fclose(f);
        const char *said = strstr(text, "\nsecurity ");
        if (cases[i].line ? !said || strncmp(said, cases[i].line, strlen(cases[i].line)) : said != NULL)
            fail_msg("case %zu: %s", i, text);
        free(text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        ON_DISK(losses_keep_every_bit),
        ON_DISK(evaluations_replace_those_of_their_step),
        ON_DISK(broken_lines_are_named),
        ON_DISK(everything_is_merged),
        ON_DISK(parts_add_up_to_the_mean_step_above_them),
        ON_DISK(ranks_that_share_a_gpu_are_added_up),
        ON_DISK(mfu_is_of_all_gpus),
        ON_DISK(an_impossible_difference_is_not_known),
        ON_DISK(memory_agrees_class_by_class),
        ON_DISK(missing_ranks_are_named),
        ON_DISK(ring_has_a_stage),
        cmocka_unit_test(lines_fit_the_terminal),
        cmocka_unit_test(the_header_tells_the_clipping),
        cmocka_unit_test(the_header_tells_who_may_join),
        cmocka_unit_test(people_read_numbers),
    };
    return cmocka_run_group_tests_name("summary", tests, NULL, NULL);
}
