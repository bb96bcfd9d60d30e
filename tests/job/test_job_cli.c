// The command line of a user: wrong options and configurations, help, predictions, small commands.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cjson/cJSON.h>
#include <cmocka.h>

#include "shared/config/config.h"
#include "shared/core/disk.h"
#include "shared/core/error.h"
#include "tests/job/job.h"

static void mistakes_are_usage_errors(void **state) {
    static const struct {
        const char *line, *says;
    } cases[] = {
        {"", "starring train"},
        {"trian", "did you mean train"},
        {"list", "train --help the topologies"},
        {"compare", "experiments/compare.py --a"},
        {"demo", "make demo"},
        {"run", "train trains"},
        {"nothing-of-the-kind", "--help lists the commands"},
        {"help nothing-of-the-kind", "--help lists the commands"},
        {"--topology zero:1", "options follow a command"},
        {"train --topology zero3 --out x", "did you mean zero:3?"},
        {"train --wrokers 2", "--workers"},
        {"train --topology zero:4 --out x", "zero:4"},
        {"train --workers many --out x", "--workers"},
        {"train --model no-such-model --out x", "no-such-model"},
        {"train --model tiny --data no-such-file --out x", "no-such-file"},
        {"train --dtype fp8 --out x", "--dtype"},
        {"train -c no-such.json --out x", "no-such.json"},
        {"train --topology ps:sync --launch threads --model tiny --data data.txt --out x",
         "--launch processes"},
        {"train --topology zero:1 --workers 2000 --launch processes --model tiny --data data.txt --out x",
         "--launch threads: more"},
        {"train --topology zero:1 --device cpu --medium tcp --collective shm --out x",
         "use --collective tcp"},
        {"train --topology zero:1 --device cpu --collective gloo --out x",
         "\"gloo\" has gone: tcp does the same"},
        {"train --topology zero:1 --device cpu --collective shm --launch mpi --out x", "--launch processes"},
        {"train --topology zero:1 --device cpu --collective tcp --launch threads --out x",
         "use --collective local"},
        {"train --topology zero:1 --device cpu --collective local --launch processes --out x",
         "--collective shm"},
        {"train --topology zero:1 --workers 5000 --launch threads --model tiny --data data.txt --out x",
         "4096"},
        {"train --topology local --launch mpi --model tiny --data data.txt --out x", "--launch mpi"},
        {"train --topology zero:1 --device cpu --collective nccl --data data.txt --out x", "--device cuda"},
        {"train --topology zero:1 --device cpu --collective mpi --data data.txt --out x", "--launch mpi"},
        {"train --topology zero:1 --device cpu --collective mpi --launch threads --out x",
         "--collective local"},
        {"train --topology zero:1 --device cpu --collective local --launch mpi --out x", "--collective mpi"},
        {"train --topology zero:1 --device cpu --collective tcp --launch mpi --out x",
         "the ranks talk over MPI; use --collective mpi"},
        {"train --topology zero:1 --device cpu --collective tcp --medium shm --out x",
         "--collective tcp shares no memory; use --collective shm"},
        {"train --topology zero:1 --workers 2 --device cpu --collective tcp --set reduce=native "
         "--data data.txt --out x",
         "over tcp ranks sum themselves"},
        {"train --topology zero:1 --workers 2 --device cpu --set reduce=native --data data.txt --out x",
         "\"reduce\": \"native\""},
        {"train --topology zero:1 --workers 2 --device cpu --set reduce=native --launch mpi --dtype bf16 "
         "--out x",
         "no sum of bf16"},
        {"train --topology zero:1 --device cpu --medium tcp --launch threads --out x",
         "read each other's memory"},
        {"train --topology zero:1 --device cpu --medium shm --collective local --out x", "use --launch "},
        {"train --topology zero:1 --device cuda --medium tcp --collective nccl --out x",
         "NCCL_P2P_DISABLE=1"},
        {"train --topology local --device cpu --medium tcp --data data.txt --out x", "sends no messages"},
        {"train --topology zero:1 --medium udp --out x", "--medium"},
        {"train --topology ps:sync --set reduce=native --data data.txt --out x", "the star's servers"},
        {"train --model gpt2.json --data data.txt --seq 64 --out x", "--seq 64"},
        {"server -c star.json", "--scheduler"},
        {"worker --topology zero:1 --scheduler tcp://127.0.0.1:1", "zero:1"},
        {"server --topology ps:sync --scheduler tcp://127.0.0.1:1 --rank 9", "--rank 9"},
        {"server --topology ps:sync --scheduler tcp://127.0.0.1:1 --force", "unknown option --force"},
        {"scheduler --topology ps:sync --no-weights", "unknown option --no-weights"},
        {"worker --topology ps:sync --launche", "starring worker --help"},
        {"bench ps --servers 0", "--servers"},
        {"bench collective --op nothing", "--op nothing"},
        {"bench nothing", "bench"},
        {"bench step --model nothing", "nothing"},
        {"data", "data info"},
        {"data tokenize data.txt", "expected IN and OUT"},
        {"data tokenize --tokenizer bpe data.txt out.bin", "bpe"},
        {"summary", "which run"},
        {"evaluate", "name one run"},
    };
    const struct job_place *p = *state;
    assert_int_equal(run_file_write(p->dir, "star.json", "{\"topology\": \"ps:sync\", \"model\": \"tiny\"}"),
                     0);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct job_output o = job_run(p, "%s", cases[i].line);
        if (o.status != 2 || !strstr(o.err, cases[i].says))
            fail_msg("starring %s: status %d, says\n%s", cases[i].line, o.status, o.err);
        job_output_free(&o);
    }
    char *path = xasprintf("%s/x", p->dir);
    assert_int_equal(access(path, F_OK), -1);  // nothing was made of it
    free(path);
}

static void every_command_has_help(void **state) {
    static const char *const lines[] = {"--help",
                                        "train --help",
                                        "scheduler --help",
                                        "server --help",
                                        "worker -h",
                                        "bench --help",
                                        "bench step --help",
                                        "data --help",
                                        "data info --help",
                                        "data tokenize --help",
                                        "data wrap --help",
                                        "summary --help",
                                        "bench adam --help",
                                        "bench kernels --help",
                                        "bench checkpoint --help",
                                        "bench offload --help",
                                        "bench collective --help"};
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        struct job_output o = job_run(*state, "%s", lines[i]);
        if (o.status || !strstr(o.out, "starring ") || *o.err)
            fail_msg("starring %s: status %d\n%s", lines[i], o.status, o.err);
        if (!strstr(o.out, "xample")) fail_msg("starring %s: no examples", lines[i]);
        // The options that only train passes to its roles.
        if (strstr(o.out, "--launched")) fail_msg("%s", o.out);
        job_output_free(&o);
    }
    static const char *const asked[][2] = {{"help train", "train --help"},
                                           {"help bench ps", "bench ps --help"},
                                           {"help data", "data --help"},
                                           {"help summary", "summary -h"},
                                           {"help", "--help"}};
    for (size_t i = 0; i < sizeof asked / sizeof asked[0]; i++) {
        struct job_output one = job_run(*state, "%s", asked[i][0]),
                          other = job_run(*state, "%s", asked[i][1]);
        assert_int_equal(one.status, 0);
        assert_string_equal(one.out, other.out);
        job_output_free(&one);
        job_output_free(&other);
    }
    struct job_output o = job_run(*state, "--version");
    assert_int_equal(o.status, 0);
    assert_int_equal(strncmp(o.out, "starring ", 9), 0);
    job_output_free(&o);
}

static int flags_of(const char *help) {
    int n = 0;
    for (const char *at = help; (at = strstr(at, "\n  ")); at++) n += !strncmp(at + 7, "--", 2);
    return n;
}

// train's help is short: what most people need. Each group has its own, and all have every flag once.
static void train_help_is_in_groups(void **state) {
    struct job_output brief = job_run(*state, "train --help"), all = job_run(*state, "help train all"),
                      own = job_run(*state, "train --help run");
    int flags = flags_of(own.out), shown = flags_of(brief.out);
    if (shown < 15 || shown > 28) fail_msg("%d flags:\n%s", shown, brief.out);
    assert_non_null(strstr(brief.out, "--topology T "));
    assert_non_null(strstr(brief.out, "\nOnly for a star: --help star\n"));
    assert_null(strstr(brief.out, "--resident"));
    for (int g = 0; g < HELP_GROUPS; g++) {
        struct job_output o = job_run(*state, "train --help %s", help_groups[g][0]);
        if (!strstr(o.out, help_groups[g][1]) || !strstr(all.out, help_groups[g][1])) fail_msg("%s", o.out);
        flags += flags_of(o.out) - 1;  // --help itself
        job_output_free(&o);
    }
    assert_int_equal(flags_of(all.out), flags);
    assert_true(flags > 50);
    job_output_free(&brief);
    job_output_free(&all);
    job_output_free(&own);
}

// The program's own help has each bench that bench's help has.
static void the_overview_names_every_bench(void **state) {
    struct job_output all = job_run(*state, "--help"), bench = job_run(*state, "bench --help");
    char *end = strstr(bench.out, " [OPTIONS]");
    assert_non_null(end);
    *end = 0;
    assert_non_null(strstr(bench.out, " | "));
    if (!strstr(all.out, bench.out)) fail_msg("not \"%s\" in\n%s", bench.out, all.out);
    job_output_free(&all);
    job_output_free(&bench);
}

// 7.5e9 parameters, N = 64, Adam, 16 bit: gossip 150, the stages 120, 31.4, 16.6, 1.9 GB.
static void textbook_rows(void **state) {
    static const double expected_gb[] = {150, 120, 31.4, 16.6, 1.9};
    const struct job_place *p = *state;
    assert_int_equal(
        run_file_write(p->dir, "big.json",
                       "{\"model_type\":\"llama\",\"vocab_size\":32000,\"hidden_size\":4096,"
                       "\"num_hidden_layers\":36,\"num_attention_heads\":32,\"intermediate_size\":10900}"),
        0);
    for (int half = 0; half < 2; half++) {
        struct job_output o =
            job_run(p,
                    "train --model big.json --topology zero:2 --workers 64 --dtype %s --dry-run "
                    "--json",
                    half ? "fp16" : "bf16");
        if (o.status) fail_msg("%s", o.err);
        cJSON *doc = cJSON_Parse(o.out);
        double params = cJSON_GetObjectItem(doc, "params")->valuedouble;
        assert_true(fabs(params - 7.5e9) < 1e6);
        for (int row_at = 0; row_at < 5; row_at++) {
            const cJSON *row = cJSON_GetArrayItem(cJSON_GetObjectItem(doc, "textbook"), row_at);
            double gb = cJSON_GetObjectItem(row, "formula_bytes")->valuedouble * 1e-9;
            if (fabs(gb - expected_gb[row_at]) > 0.05) fail_msg("row %d: %f GB", row_at, gb);
        }
        assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(doc, "memory")), 64);
        cJSON_Delete(doc);
        job_output_free(&o);
    }
    struct job_output o =
        job_run(p,
                "train --model big.json --topology ps:sync --workers 64 --servers 3 --dtype bf16 "
                "--dry-run");
    if (o.status || !strstr(o.out, "12P/S") || !strstr(o.out, "worker 0-63, each"))
        fail_msg("%s%s", o.out, o.err);
    // Stage 1's row, 29.25003 GiB, lies at the edge of two roundings; these do not.
    static const char *const rows[] = {" 112 GiB", " 15.5 GiB", " 1.75 GiB"};
    for (int i = 0; i < 3; i++)
        if (!strstr(o.out, rows[i])) fail_msg("not \"%s\" in\n%s", rows[i], o.out);
    job_output_free(&o);
}

static void one_document_on_stdout(void **state) {
    const struct job_place *p = *state;
    struct job_output o =
        job_run(p,
                "train --model gpt2.json --data data.txt --topology ps:sync --workers 1 --steps 2 "
                "--seq 16 --batch 1 --threads 1 --out j --json --trace");
    if (o.status) fail_msg("%s", o.err);
    cJSON *printed = cJSON_Parse(o.out), *written = job_summary(p, "j");
    assert_true(cJSON_Compare(printed, written, 1));
    assert_non_null(strstr(o.err, "step "));
    job_output_free(&o);
    char *trace = run_file_read(p->dir, "j/trace.json", false);
    cJSON *events = cJSON_Parse(trace);
    assert_true(cJSON_GetArraySize(cJSON_GetObjectItem(events, "traceEvents")) > 10);
    cJSON_Delete(events);
    free(trace);
    char *weights = run_file_read(p->dir, "j/weights/config.json", false);
    assert_non_null(weights);
    free(weights);
    // An earlier run stays, until --force.
    o = job_run(p, "train --model gpt2.json --data data.txt --steps 1 --seq 16 --batch 1 --out j");
    assert_int_equal(o.status, 2);
    assert_non_null(strstr(o.err, "--force"));
    job_output_free(&o);
    o = job_run(p, "summary j --json");
    assert_int_equal(o.status, 0);
    cJSON *again = cJSON_Parse(o.out);
    assert_true(cJSON_Compare(again, written, 1));
    job_output_free(&o);
    cJSON_Delete(again);
    cJSON_Delete(printed);
    cJSON_Delete(written);
}

// A run starts from the weights an earlier one wrote.
static void weights_go_round(void **state) {
    const struct job_place *p = *state;
    struct job_output o =
        job_run(p,
                "train --model llama.json --data data.txt --topology local --steps 2 --seq 16 "
                "--batch 1 --dtype fp32 --out first --quiet --seed 5");
    if (o.status) fail_msg("%s", o.err);
    job_output_free(&o);
    o = job_run(
        p,
        "train --model first/weights --data data.txt --topology zero:3 --workers 2 --steps 1 --seq 16 --lr 0 "
        "--batch 1 --dtype fp32 --out second --quiet --seed 6 --set optimizer.params.weight_decay=0");
    if (o.status) fail_msg("%s", o.err);
    job_output_free(&o);
    cJSON *a = job_summary(p, "first"), *b = job_summary(p, "second");
    assert_string_equal(cJSON_GetObjectItem(a, "weights_hash")->valuestring,
                        cJSON_GetObjectItem(b, "weights_hash")->valuestring);
    cJSON_Delete(a);
    cJSON_Delete(b);
}

static void resolved_configuration(void **state) {
    const struct job_place *p = *state;
    struct job_output o =
        job_run(p, "train --model tiny --topology zero:2 --workers 2 --steps 7 --print-config");
    assert_int_equal(o.status, 0);
    assert_int_equal(run_file_write(p->dir, "resolved.json", o.out), 0);
    struct job_output again = job_run(p, "train -c resolved.json --print-config");
    assert_int_equal(again.status, 0);
    assert_string_equal(again.err, "");
    assert_string_equal(o.out, again.out);
    job_output_free(&o);
    job_output_free(&again);
}

static void text_becomes_tokens(void **state) {
    const struct job_place *p = *state;
    struct job_output o = job_run(p, "data tokenize data.txt data.bin");
    if (o.status) fail_msg("%s", o.err);
    job_output_free(&o);
    struct job_output a = job_run(p, "data info data.txt --json"),
                      b = job_run(p, "data info data.bin --json");
    if (a.status || b.status) fail_msg("%s%s", a.err, b.err);
    cJSON *x = cJSON_Parse(a.out), *y = cJSON_Parse(b.out);
    static const char *const keys[] = {"train_tokens", "val_tokens", "unigram_entropy"};
    for (int i = 0; i < 3; i++)
        assert_true(cJSON_GetObjectItem(x, keys[i])->valuedouble ==
                    cJSON_GetObjectItem(y, keys[i])->valuedouble);
    cJSON_Delete(x);
    cJSON_Delete(y);
    job_output_free(&a);
    job_output_free(&b);
    static const struct {
        const char *words;
        int status;
    } wrong[] = {{"data.txt data.bin", 2}, {"--force data.txt data.txt", 2}, {"data.bin again.bin", 1}};
    for (int i = 0; i < 3; i++) {
        o = job_run(p, "data tokenize %s", wrong[i].words);
        assert_int_equal(o.status, wrong[i].status);
        job_output_free(&o);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mistakes_are_usage_errors),
        cmocka_unit_test(every_command_has_help),
        cmocka_unit_test(train_help_is_in_groups),
        cmocka_unit_test(the_overview_names_every_bench),
        cmocka_unit_test(textbook_rows),
        cmocka_unit_test(one_document_on_stdout),
        cmocka_unit_test(weights_go_round),
        cmocka_unit_test(resolved_configuration),
        cmocka_unit_test(text_becomes_tokens),
    };
    return cmocka_run_group_tests_name("command line", tests, job_setup, job_teardown);
}
