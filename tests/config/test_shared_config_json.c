// The relaxed JSON reader: what it accepts, and what its errors name.
#include "shared/core/json.h"
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

// Texts, and the JSON that hjson-py 3.1.0 makes of them.
static void test_hjson(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"a: 1\nb: two words\n", "{\"a\":1,\"b\":\"two words\"}"},
        {"\"a\": 1, 'b': 'it\"s', c: \"d\" e: []", "{\"a\":1,\"b\":\"it\\\"s\",\"c\":\"d\",\"e\":[]}"},
        {"{a: 5e8 # five\n b: .5\n c: 007 // seven\n d: 1_000\n e: -0.5e-1 /* x */ }",
         "{\"a\":500000000,\"b\":\".5\",\"c\":\"007 // seven\",\"d\":\"1_000\",\"e\":-0.05}"},
        {"{type: AdamW, lr: 1\n}", "{\"type\":\"AdamW, lr: 1\"}"},
        {"{\n  on: true,\n  off: false\n  not: null # no\n  True: True,\n}",
         "{\"on\":true,\"off\":false,\"not\":null,\"True\":\"True,\"}"},
        {"{a: [1\n2, three\nfour]\n], b: {}}", "{\"a\":[1,2,\"three\",\"four]\"],\"b\":{}}"},
        {"{\n  t: '''\n    one\n      two\n    '''\n  u: '''x'''\n  v: '''a''b'''\n}",
         "{\"t\":\"one\\n two\",\"u\":\"x\",\"v\":\"a''b\"}"},
        {"{\n  t:\n    '''\n    one\n      two\n    '''\n}", "{\"t\":\"one\\n  two\"}"},
        {"{\r\n  a: text\r\n  b: 2\r\n}\r\n", "{\"a\":\"text\",\"b\":2}"},
        {"{a: '\\'\\u00e9', 'b c': NaN\n}", "{\"a\":\"'\xc3\xa9\",\"b c\":\"NaN\"}"},
        {"{\"a\": \"x\" \"b\": 2, \"c\": [[1] [2]]}", "{\"a\":\"x\",\"b\":2,\"c\":[[1],[2]]}"},
        {"/* a */ # b\n[1]", "[1]"},
        {" -2.5 ", "-2.5"},
        {"'alone'", "\"alone\""},
        {"# alone\n  '''one\n    two\n  three\n  '''", "\"one\\n  two\\nthree\""},
        {"# a comment\ra: 1 // another\rb: 2", "{\"a\":1,\"b\":2}"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        cJSON *root = relaxed_json_parse("t", cases[i][0]);
        char *text = root ? cJSON_PrintUnformatted(root) : NULL;
        if (!text) fail_msg("%s: %s", cases[i][0], error_last());
        assert_string_equal(text, cases[i][1]);
        free(text);
        cJSON_Delete(root);
    }
    // A value of the command line is itself the text where it has no quotes, or would be members without brackets.
    static const char *const texts[] = {"abc", "a: 1",   "zero:1", ".5", "2:8", "tcp://127.0.0.1:*",
                                        "# x", "[a, b]", ""};
    for (size_t i = 0; i < COUNT(texts); i++) assert_null(relaxed_json_try(texts[i]));
    cJSON *v = relaxed_json_try("{device: cpu\n}");
    assert_string_equal(cJSON_GetObjectItem(v, "device")->valuestring, "cpu");
    cJSON_Delete(v);
}

static void test_relaxed_errors(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"", "t:1:1|expected a value|end of the text"},
        {"# a remark alone", "t:1:17|expected a value|end of the text"},
        {"{\n  \"a\" 1}", "t:2:7|expected ':'|got '1'"},
        {"{\"a\": 1 \"b\": 2}", "t:1:16|',' or '}'|the text at 1:7 has no quotes"},
        {"{\n a: [1 2]\n}", "',' or ']'|got '}'|the text at 2:6 has no quotes"},
        {"{\"a\": 1,, \"b\": 2}", "t:1:9|',' or '}'|got ','"},
        {"{a b: 1}", "t:1:4|expected ':'|got 'b'"},
        {"{: 1}", "t:1:2|a member's name|got ':'"},
        {"a: 1\n}", "t:2:1|a member's name|got '}'"},
        {"{\"a\": True}", "the text at 1:7 has no quotes|behind the bracket in it: write true"},
        {"{\"a\": None}", "behind the bracket in it: write null"},
        {"{\"a\": [-Infinity]}", "write a finite number or null, for JSON has no -Infinity"},
        {"{\"a\": .1}", "write the number 0.1"},
        {"{\"a\": 2.e-5}", "write the number 2e-05"},
        {"{\"a\": 0x4}", "write the number 4"},
        {"{\"a\": 1_000}", "write the number 1000"},
        {"{\"a\": (0.9,0.95)}", "write a list in brackets, [0.9,0.95]"},
        {"{\"a\": word}", "behind the bracket in it: quote it"},
        {"{\"a\": 1e-999}", "t:1:7|none so small that it is 0"},
        {"{\"a\": tru}", "t:1:11|the text at 1:7 has no quotes"},
        {"{\"a\": }", "t:1:7|expected a value|got '}'"},
        {"{\"a\":\n\n", "t:3:1|expected a value|end of the text"},
        {"{\"a\": 1e999}", "t:1:7|finite number"},
        {"{\"a\": \"b\n\"}", "t:1:9|end the string|end of the line"},
        {"{\"a\": \"b", "t:1:9|end the string|end of the text"},
        {"{'a': 'b\t'}", "t:1:9|\"'\" to end the string"},
        {"{\n a: '''\n b", "t:2:5|''' at the end"},
        {"{\"a\": \"\\q\"}", "t:1:8|an escape"},
        {"{\"a\": \"\\ud800\"}", "an escape"},
        {"{\"a\": \"\\u12\"}", "an escape"},
        {"{\"a\": \"\\u0000\"}", "an escape"},
        {"{\"a\": 1} x", "t:1:10|nothing more"},
        {"{\"a\": {}", "',' or '}'|end of the text"},
        {"{\n/* no end", "'*/'|end of the text"},
        {"{\n\"a\": 1,\n\n \"a\": 2}", "t:4:2|\"a\" is given twice"},
        {"{\n \xe2\x80\x9c"
         "a\": 1}",
         "t:2:2|a member's name|(U+201C)|write a plain \""},
        {"{\"a\": \xc2\xa0"
         "1}",
         "t:1:7|expected a value|(U+00A0)|write a blank"},
        {"# one mark alone\n\xef\xbb\xbf"
         "5",
         "t:2:1|a member's name|(U+FEFF)|write a blank"},
        {"{\"a\"\xef\xbc\x9a 1}", "t:1:5|expected ':'|(U+FF1A)"},
        {"a: 1\n'a': 2", "t:2:1|\"a\" is given twice"},
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
        cmocka_unit_test(test_hjson),
        cmocka_unit_test(test_relaxed_errors),
        cmocka_unit_test(test_relaxed_is_linear),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
