// A figure is a row: its key, unit and meaning, where its value lies, and how the figures of ranks become one of the run.
//
//     a struct that was measured into --- figures_put --->  a JSON document: a rank's report, a line, a bench's result
//     all ranks' reports ---------------- figures_join -->  summary.json
//     the rows themselves --------------- figures_tell -->  docs/files.md (`make docs`)
//
// A key is a path: "time.forward" is a member of the object "time", "wire[].repeated" one of each element of the list "wire".
// Where an object is not there, its members are not either.
#ifndef STARRING_SHARED_REPORT_FIGURE_H
#define STARRING_SHARED_REPORT_FIGURE_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum figure_kind {
    FIGURE_TOLD,  // the row says what it means; other code puts it there
    FIGURE_MADE,  // by put
    FIGURE_OBJECT,
    FIGURE_REAL,
    FIGURE_INT,
    FIGURE_I64,
    FIGURE_U64,
    FIGURE_BOOL,
    FIGURE_CHARS,  // in the struct
    FIGURE_TEXT,   // a pointer in it
};

enum figure_join {
    JOIN_NONE,
    JOIN_SUM,   // of all ranks
    JOIN_MOST,  // of them
    JOIN_BOTH,  // the sum under "totals", the largest under "busiest"
    JOIN_MEAN_OF_WORKERS,
    JOIN_MOST_OF_WORKERS,
    JOIN_FIRST,  // worker 0's
};

struct figure {
    const char *key;
    const char *unit;     // NULL: none
    const char *meaning;  // NULL: the key says it
    size_t at;            // where it lies in the struct
    enum figure_kind kind;
    const char *type;  // for people; NULL: as kind says
    const char *when;  // when it is there; NULL: always, or with its object
    size_t if_at;
    enum figure_kind if_kind;         // it is there if what lies there is not 0; FIGURE_TOLD: always
    bool (*there)(const void *from);  // or if this says so; NULL: always
    void (*put)(cJSON *o, const char *key, const void *from);  // of FIGURE_MADE
    bool null_if_zero;
    unsigned in;    // the lists of a larger document that take it over from this one
    unsigned lack;  // the kinds of documents in which it is not
    enum figure_join join;
    const char
        *to;  // its path in the summary, where it is joined (NULL: its key) or other code puts it there
    const char *words;  // the heading of its line in comparisons; NULL: it has none
};

#define FIGURE_KIND(x) \
    _Generic(&(x),                     \
        double *: FIGURE_REAL,         \
        int *: FIGURE_INT,             \
        long *: FIGURE_I64,            \
        unsigned long *: FIGURE_U64,   \
        bool *: FIGURE_BOOL,           \
        char **: FIGURE_TEXT,          \
        const char **: FIGURE_TEXT,    \
        struct cJSON **: FIGURE_TEXT,  \
        default: FIGURE_CHARS)
// Where member m of struct s lies, and of what kind it is.
#define FIGURE_AT(s, m) .at = offsetof(struct s, m), .kind = FIGURE_KIND(((struct s *)0)->m)

// That it is there where member m of struct s is not 0, or no null pointer.
#define FIGURE_IF(s, m) .if_at = offsetof(struct s, m), .if_kind = FIGURE_KIND(((struct s *)0)->m)

struct figure_rows {
    const struct figure *rows;
    size_t count;
};
#define FIGURE_ROWS(table) ((struct figure_rows){table, sizeof(table) / sizeof(table)[0]})

// Adds to o what lies in `from`, row by row. Numbers that are not finite, and texts that are empty, are null.
void figures_put(cJSON *o, struct figure_rows rows, const void *from);
// Adds to o what the ranks' reports make together, where the object is that it goes into. A rank that does not tell a figure
// has none of it.
void figures_join(cJSON *o, struct figure_rows rows, const cJSON *ranks);
// Writes {"key":value, ..} and a line end. Doubles have 17 digits, so that equal text means equal bits, and a point or an exponent,
// so that readers that guess types take every line's for a float; those that are not finite are null. Returns the length.
#define FIGURE_LINE_MAX 512
int figures_line(char line[FIGURE_LINE_MAX], struct figure_rows rows, const void *from);
#define FIGURE_NUMBER_MAX 40
const char *figure_number_text(char text[FIGURE_NUMBER_MAX], double x);  // such a double
// A row's value, and whether it is there. NAN: it is no number.
double figure_value(const struct figure *f, const void *from);
bool figure_is_there(const struct figure *f, const void *from);

// Copies to element the members of a rank's report that the list `in` takes over.
void figures_take(cJSON *element, struct figure_rows rows, unsigned in, const cJSON *report);
// The number at a path; NAN: none.
double figure_number(const cJSON *o, const char *path);

// The output of figures_tell: of the rows that the list `in` takes over (0: all rows), without those that `lack` has no use for.
struct figure_told {
    const char *file, *prefix;  // prefix stands before the keys
    struct figure_rows rows;
    unsigned in, lack;
    const char *when;  // of rows that are always there; NULL: always
};
// Adds each of these rows to the list as {file, key, type, unit, when, meaning, words}.
void figures_tell(cJSON *list, const struct figure_told *t);

#endif
