// The relaxed JSON reader: what it accepts, and what its errors name.
#include "shared/core/relaxed_json.h"
#include "tests/config/config_helper.h"

static void test_relaxed_forms(void **state) {
    (void)state;
    const char *text =
        "\xef\xbb\xbf# a comment\n{ // another\n"
        "  \"a\": 5e8, /* over\n two lines */ \"b\": [1, -2.5, [], {},],\n"
        "  \"c\": {\"d\": null}\n  \"e\": true # no comma before or after\n"
        "  \"f\": \"x\\n\\u00e9\\ud83d\\ude00\\\"//no comment\"\n"
        "  \"g\": [1\n 2\n 3]\n}\n// end";
    cJSON *root = relaxed_json_parse("t", text);
    assert_non_null(root);
    assert_true(cJSON_GetObjectItem(root, "a")->valuedouble == 500000000.0);
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(root, "b")), 4);
    assert_true(cJSON_GetArrayItem(cJSON_GetObjectItem(root, "b"), 1)->valuedouble == -2.5);
    assert_true(cJSON_IsNull(cJSON_GetObjectItem(cJSON_GetObjectItem(root, "c"), "d")));
    assert_true(cJSON_IsTrue(cJSON_GetObjectItem(root, "e")));
    assert_string_equal(cJSON_GetObjectItem(root, "f")->valuestring,
                        "x\n\xc3\xa9\xf0\x9f\x98\x80\"//no comment");
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(root, "g")), 3);
    assert_int_equal(cJSON_GetArraySize(root), 6);
    cJSON_Delete(root);
}

// A comma that is read though it is not there is told with its place; of many the first ones.
static void test_missing_commas_are_told(void **state) {
    (void)state;
    struct config *c = accept("{\n  \"steps\": 3 // more\n  \"seed\": 2,\n  \"workers\": 1\n}");
    assert_int_equal(c->seed, 2);
    assert_words(said, ":2:13: no comma behind this value", "one");
    assert_null(strstr(strstr(said, "no comma") + 1, "no comma"));
    config_destroy(&c);
    c = accept("{\"steps\": 3,\n \"seed\": 2,\n}");
    assert_string_equal(said, "");
    config_destroy(&c);
    cJSON *quiet = relaxed_json_try("[1\n2]");
    assert_int_equal(cJSON_GetArraySize(quiet), 2);
    cJSON_Delete(quiet);
    char text[256] = "{\"trouble\": {\"straggle\": [";
    for (int i = 0; i < 40; i++) strcat(text, "1\n");
    strcat(text, "]}}");
    assert_null(load(text, NULL, 0));
    int lines = 0;
    for (const char *at = said; (at = strstr(at, "no comma")); at++) lines++;
    assert_int_equal(lines, 5);
}

static void test_relaxed_errors(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"", "t:1:1|expected a value|end of the text"},
        {"{\n  \"a\" 1}", "t:2:7|expected ':'|got '1'"},
        {"{\"a\": 1 \"b\": 2}", "t:1:9|',' or '}'"},
        {"{\"a\": [1 2]}", "t:1:10|',' or ']'"},
        {"{\"a\": 1,, \"b\": 2}", "t:1:9|member name|got ','"},
        {"{a: 1}", "t:1:2|double quotes|got 'a'"},
        {"{\"a\": tru}", "t:1:7|expected a value|got 't'"},
        {"{\"a\": truely}", "expected a value|got 't'"},
        {"{\"a\": 01}", "t:1:7|finite number"},
        {"{\"a\": 1.}", "finite number"},
        {"{\"a\": -}", "finite number"},
        {"{\"a\": 1e999}", "finite number"},
        {"{\"a\": \"b\n\"}", "t:1:9|end the string|end of the line"},
        {"{\"a\": \"b", "t:1:9|end the string|end of the text"},
        {"{\"a\": \"\\q\"}", "t:1:8|an escape"},
        {"{\"a\": \"\\ud800\"}", "an escape"},
        {"{\"a\": \"\\u12\"}", "an escape"},
        {"{\"a\": \"\\u0000\"}", "an escape"},
        {"{\"a\": 1} x", "t:1:10|nothing more"},
        {"{\"a\": 1", "',' or '}'|end of the text"},
        {"{\n/* no end", "'*/'|end of the text"},
        {"{\n\"a\": 1,\n\n \"a\": 2}", "t:4:2|\"a\" is given twice"},
        {"{\"a\": \x01}", "byte 0x01"},
    };
    error_quiet(1);
    for (size_t i = 0; i < COUNT(cases); i++) {
        error_clear();
        cJSON *root = relaxed_json_parse("t", cases[i][0]);
        if (root) fail_msg("accepted: %s", cases[i][0]);
        assert_words(error_last(), cases[i][1], cases[i][0]);
        error_clear();
        assert_null(relaxed_json_try(cases[i][0]));
        assert_string_equal(error_last(), "");
    }
    char deep[201];
    memset(deep, '[', 200);
    deep[200] = 0;
    assert_null(relaxed_json_parse("t", deep));
    assert_words(error_last(), "t:1:65|nesting", "deep");
    assert_null(relaxed_json_load("/nonexistent/x.json"));
    assert_words(error_last(), "/nonexistent/x.json|cannot open", "missing file");
    assert_null(relaxed_json_load("/tmp"));
    assert_words(error_last(), "/tmp|is a directory", "directory");
    error_quiet(0);
}

// A long name, and many members: both took a time that grew with their square.
static void test_relaxed_is_linear(void **state) {
    (void)state;
    const size_t members = 200000;
    char *text = malloc(members * 16 + 8), *at = text;
    at += sprintf(at, "{");
    for (size_t i = 0; i < members; i++) at += sprintf(at, "%s\"k%zu\": 1", i ? "," : "", i);
    sprintf(at, "}");
    clock_t begin = clock();
    cJSON *root = relaxed_json_parse("t", text);
    assert_non_null(root);
    assert_int_equal(cJSON_GetArraySize(root), members);
    cJSON_Delete(root);
    assert_true((double)(clock() - begin) / CLOCKS_PER_SEC < 5);  // was 40 s, is 0.1 s
    sprintf(at, ", \"k77\": 2}");
    error_quiet(1);
    assert_null(relaxed_json_parse("t", text));
    assert_words(error_last(), "\"k77\" is given twice", "the last member");
    error_quiet(0);
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_relaxed_forms),
        cmocka_unit_test(test_missing_commas_are_told),
        cmocka_unit_test(test_relaxed_errors),
        cmocka_unit_test(test_relaxed_is_linear),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
