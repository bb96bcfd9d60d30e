// The demo's text: Debian's jargon-text, or without the package an English-like text from a small grammar.
#include "shared/data/data_stream.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

#include "shared/core/error.h"
#include "shared/core/numbers.h"

#define GENERATED_BYTES 1000000
#define DEMO_MAX_BYTES  ((size_t)64 << 20)
#define GENERATED_KEY   UINT64_C(0x67656e6572617465)

// Returns the content of a gzip file, or NULL after logging its name.
static char *read_gzip(const char *path, size_t *bytes) {
    gzFile f = gzopen(path, "rb");
    if (!f) {
        fail("data %s: %s", path, strerror(errno));
        return NULL;
    }
    size_t room = (size_t)1 << 20, n = 0;
    char *text = xcalloc(room, 1);
    int got;
    while ((got = gzread(f, text + n, (unsigned)(room - n))) > 0) {
        n += (size_t)got;
        if (n == DEMO_MAX_BYTES) break;
        if (n == room) text = xrealloc(text, room *= 2);
    }
    // gzread does not report a truncated file; gzclose does.
    int closed = gzclose(f);
    if (got != 0 || closed != Z_OK || n == 0) {
        fail("data %s: damaged or not gzip; install the package jargon-text again", path);
        free(text);
        return NULL;
    }
    *bytes = n;
    return text;
}

// Returns the name with the version of the title page, "4.4.7" from "(version 4.4.7)".
static char *demo_name(const char *text, size_t bytes) {
    char head[1024] = "", version[16] = "";
    memcpy(head, text, bytes < sizeof head - 1 ? bytes : sizeof head - 1);
    const char *at = strstr(head, "(version ");
    if (at) sscanf(at, "(version %15[0-9.]", version);
    return xasprintf("jargon-text%s%s", *version ? " " : "", version);
}

char *demo_text(const char *path, size_t *bytes, char **name) {
    if (access(path, F_OK) != 0) {
        *name = xstrdup("generated text (the package jargon-text is not installed)");
        *bytes = GENERATED_BYTES;
        return generated_text(GENERATED_BYTES);
    }
    char *text = read_gzip(path, bytes);
    if (text) *name = demo_name(text, *bytes);
    return text;
}

// ---------------------------------------------------------------- the generated text
// Sentences from a grammar whose words are drawn with falling frequency. Each paragraph repeats a few nouns, so
// that there is something to learn at every distance from a letter to a paragraph.

static const char *const nouns[] = {
    "machine", "program", "network", "signal",   "river",   "teacher",  "garden",  "letter",
    "engine",  "window",  "harbour", "question", "winter",  "village",  "student", "mountain",
    "mirror",  "captain", "market",  "bridge",   "pattern", "journey",  "library", "lantern",
    "weaver",  "orchard", "compass", "forest",   "painter", "stranger", "kitchen", "station",
    "printer", "shadow",  "valley",  "message",  "doctor",  "island",   "thread",  "morning"};
static const char *const verbs[] = {"follows",   "carries", "watches",  "repairs",  "answers",
                                    "remembers", "crosses", "builds",   "measures", "guards",
                                    "finds",     "paints",  "changes",  "reaches",  "teaches",
                                    "forgets",   "gathers", "explains", "loses",    "opens"};
static const char *const adjectives[] = {
    "old",     "quiet",  "small",  "bright", "broken", "distant", "green",  "careful", "heavy",    "early",
    "patient", "hidden", "silver", "narrow", "gentle", "strange", "broken", "warm",    "familiar", "empty"};
static const char *const prepositions[] = {"near",   "behind", "under",  "beyond",
                                           "inside", "above",  "beside", "without"};
static const char *const openings[] = {"in the evening", "after the storm",  "every year",
                                       "at first",       "before dawn",      "on the way home",
                                       "in this case",   "from time to time"};
static const char *const joins[] = {"and", "but", "because", "while", "so that", "although"};

struct pen {
    char *text;
    size_t n, room;
    uint64_t draws;
    int topic[4];  // nouns of this paragraph
    int capital;   // the next word starts a sentence
};

#define COUNT(a) ((int)(sizeof(a) / sizeof *(a)))

static int pick(struct pen *p, int n) { return (int)rng_below(GENERATED_KEY, p->draws++, 0, (uint64_t)n); }

// Draws two numbers and takes the smaller one, so that earlier words of a list are more frequent.
static const char *choose(struct pen *p, const char *const *words, int n) {
    int a = pick(p, n), b = pick(p, n);
    return words[a < b ? a : b];
}

static void put(struct pen *p, const char *s) {
    for (; *s && p->n < p->room; s++) p->text[p->n++] = *s;
}

static void word(struct pen *p, const char *s) {
    if (p->n && p->text[p->n - 1] != '\n') put(p, " ");
    size_t at = p->n;
    put(p, s);
    if (p->capital && p->n > at) p->text[at] = (char)(p->text[at] - 'a' + 'A');
    p->capital = 0;
}

static void noun_phrase(struct pen *p) {
    const char *noun =
        pick(p, 4) ? nouns[p->topic[pick(p, COUNT(p->topic))]] : choose(p, nouns, COUNT(nouns));
    const char *adjective = pick(p, 5) < 2 ? choose(p, adjectives, COUNT(adjectives)) : NULL;
    const char *first = adjective ? adjective : noun;
    if (pick(p, 3))
        word(p, "the");
    else
        word(p, strchr("aeiou", first[0]) ? "an" : "a");
    if (adjective) word(p, adjective);
    word(p, noun);
}

static void clause(struct pen *p) {
    noun_phrase(p);
    word(p, choose(p, verbs, COUNT(verbs)));
    noun_phrase(p);
    if (pick(p, 3) == 0) {
        word(p, choose(p, prepositions, COUNT(prepositions)));
        noun_phrase(p);
    }
}

static void sentence(struct pen *p) {
    p->capital = 1;
    if (pick(p, 5) == 0) {
        word(p, choose(p, openings, COUNT(openings)));
        put(p, ",");
    }
    clause(p);
    if (pick(p, 3) == 0) {
        put(p, ",");
        word(p, choose(p, joins, COUNT(joins)));
        clause(p);
    }
    put(p, pick(p, 12) ? "." : "!");
}

char *generated_text(size_t bytes) {
    struct pen p = {.text = xcalloc(bytes + 1, 1), .room = bytes};
    while (p.n < p.room) {
        for (int i = 0; i < COUNT(p.topic); i++) p.topic[i] = pick(&p, COUNT(nouns));
        for (int i = 3 + pick(&p, 5); i > 0; i--) sentence(&p);
        put(&p, "\n\n");
    }
    return p.text;
}
