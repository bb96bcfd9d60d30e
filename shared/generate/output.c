#include "shared/generate/output.h"

#include <stdlib.h>
#include <string.h>

#include "shared/config/json.h"
#include "shared/core/error.h"

static void put(struct token_printer *p, int32_t token) {
    if (!p->bytes)
        fprintf(p->f, p->begun ? " %d" : "%d", token);
    else if (token < 256)
        fputc(token, p->f);
    p->begun = true;
}

void print_prompt(struct token_printer *p, const struct prompt *prompt) {
    for (int64_t i = 0; i < prompt->count; i++) put(p, prompt->ids[i]);
    fflush(p->f);
}

int print_token(void *ctx, int32_t token) {
    struct token_printer *p = ctx;
    put(p, token);
    return fflush(p->f) ? -1 : 0;
}

// Length of the UTF-8 sequence that begins at s, of n bytes (RFC 3629, section 4: no surrogates, nothing
// overlong, at most U+10FFFF); 0: none does.
static int utf8_length(const unsigned char *s, int64_t n) {
    int length = s[0] < 0x80 ? 1 : s[0] < 0xc2 ? 0 : s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : s[0] < 0xf5 ? 4 : 0;
    if (length > n) return 0;
    for (int i = 1; i < length; i++)
        if ((s[i] & 0xc0) != 0x80) return 0;
    if ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f) || (s[0] == 0xf0 && s[1] < 0x90) ||
        (s[0] == 0xf4 && s[1] > 0x8f))
        return 0;
    return length;
}

// malloc'd text of byte tokens. A NUL would end a C string, so it is replaced as well.
static char *text_of(const int32_t *ids, int64_t n) {
    static const char replacement[] = "\xef\xbf\xbd";
    unsigned char *bytes = xcalloc((size_t)n + 1, 1);
    char *text = xcalloc((size_t)n * (sizeof replacement - 1) + 1, 1), *to = text;
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++)
        if (ids[i] < 256) bytes[count++] = (unsigned char)ids[i];
    for (int64_t i = 0; i < count;) {
        int length = bytes[i] ? utf8_length(bytes + i, count - i) : 0;
        const void *from = length ? (const void *)(bytes + i) : replacement;
        size_t width = length ? (size_t)length : sizeof replacement - 1;
        memcpy(to, from, width);
        to += width;
        i += length ? length : 1;
    }
    free(bytes);
    return text;
}

static void add_ids(cJSON *j, const char *name, const int32_t *ids, int64_t n) {
    cJSON *list = cJSON_AddArrayToObject(j, name);
    for (int64_t i = 0; i < n; i++) cJSON_AddItemToArray(list, cJSON_CreateNumber(ids[i]));
}

static void add_text(cJSON *j, const char *name, bool bytes, const int32_t *ids, int64_t n) {
    char *text = bytes ? text_of(ids, n) : NULL;
    if (text)
        cJSON_AddStringToObject(j, name, text);
    else
        cJSON_AddNullToObject(j, name);
    free(text);
}

void print_generation_json(FILE *f, const struct generation *g) {
    const struct sample_options *s = &g->options->sample;
    cJSON *j = cJSON_CreateObject();
    char seed[24];
    snprintf(seed, sizeof seed, "%llu", (unsigned long long)s->seed);
    cJSON_AddStringToObject(j, "model", g->model);
    cJSON_AddStringToObject(j, "weights", g->weights);
    cJSON_AddStringToObject(j, "vocabulary", g->prompt->bytes ? "byte" : "ids");
    add_text(j, "prompt", g->prompt->bytes, g->prompt->ids, g->prompt->count);
    add_text(j, "text", g->prompt->bytes, g->ids, g->count);
    add_ids(j, "prompt_ids", g->prompt->ids, g->prompt->count);
    add_ids(j, "ids", g->ids, g->count);
    cJSON_AddStringToObject(j, "ended_by", g->ended ? "end of text" : "count");
    cJSON_AddNumberToObject(j, "temperature", s->temperature);
    cJSON_AddNumberToObject(j, "top_k", s->top_k);
    cJSON_AddRawToObject(j, "seed", seed);
    cJSON_AddNumberToObject(j, "window", (double)g->window);
    cJSON_AddStringToObject(j, "dtype", dtype_name(g->dtype));
    cJSON_AddStringToObject(j, "device", g->device);
    json_put_text(j, "cpu_kernel", g->cpu_kernel);
    cJSON_AddNumberToObject(j, "seconds", g->seconds);
    cJSON_AddNumberToObject(j, "tokens_per_second", g->seconds > 0 ? (double)g->count / g->seconds : 0);
    json_print(f, j);
    cJSON_Delete(j);
}
