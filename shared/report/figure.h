// A figure is a table row: its key, unit and meaning, its offset in a struct, and how ranks' figures are combined for
// the run.
//
//     a struct with measurements -------- figures_put ---------->  a JSON document: a rank's report, a line, a bench's result
//     a struct with predictions --------- figures_put_predicted ->  --dry-run --json: the same keys, of predicted rows
//     all ranks' reports ---------------- figures_join --------->  summary.json
//     the rows themselves --------------- figures_describe ----->  docs/files.md (`make docs`)
//
// Tables walk the rows as well: a predicted row with a title is a line of the dry run's table, and a column of the
// closing table of a run, next to the measured figure that it names.
//
// A key is a path: "time.forward" is a member of the object "time", "wire[].repeated" a member of each element of the
// list "wire". If an object is absent, its members are absent too.
#ifndef STARRING_SHARED_REPORT_FIGURE_H
#define STARRING_SHARED_REPORT_FIGURE_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum figure_kind {
    FIGURE_DESCRIBED,  // the row only describes it; other code writes it
    FIGURE_MADE,       // written by the row's function put
    FIGURE_OBJECT,
    FIGURE_REAL,
    FIGURE_INT,
    FIGURE_I64,
    FIGURE_U64,
    FIGURE_BOOL,
    FIGURE_CHARS,  // a char array in the struct
    FIGURE_TEXT,   // a pointer in the struct
};

enum figure_join {
    JOIN_NONE,
    JOIN_SUM,   // the sum over all ranks
    JOIN_MOST,  // the largest of all ranks
    JOIN_BOTH,  // the sum under "totals", the largest under "busiest"; `to` is "totals.NAME"
    JOIN_MEAN_OF_WORKERS,
    JOIN_MOST_OF_WORKERS,
    JOIN_FIRST,  // worker 0's value
    JOIN_EACH,   // a list: an element for each rank that has the figure
};

struct figure {
    const char *key;
    const char *unit;     // NULL: none
    const char *meaning;  // NULL: the key is clear enough
    size_t at;            // offset in the struct
    enum figure_kind kind;
    const char *type;  // as printed in docs; NULL: follows from kind
    const char *when;  // the condition printed in docs; NULL: always, or as its object
    size_t if_at;
    enum figure_kind if_kind;  // it is present if the value at if_at is not 0; FIGURE_DESCRIBED: always
    bool (*there)(const void *from);                           // and only if this returns true; NULL: always
    void (*put)(cJSON *o, const char *key, const void *from);  // for FIGURE_MADE
    bool null_if_zero;
    unsigned in;             // the lists of a larger document that copy it from this one
    unsigned excluded_from;  // the kinds of documents that do not have it
    enum figure_join join;
    const char *to;  // its path in the summary, if joined (NULL: its key) or written there by other code
    const char *compared_as;  // its row title in comparisons; NULL: none
    const char *title;        // title of the row in tables of this program; NULL: it is in no table
    const char *note;         // printed after the value in the dry run's table; NULL: nothing
    bool predicted;           // known before the run
    const char *measured;  // of a predicted row: the key of the measured figure of the same thing; NULL: none
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
// Offset and kind of member m of struct s.
#define FIGURE_AT(s, m) .at = offsetof(struct s, m), .kind = FIGURE_KIND(((struct s *)0)->m)

// The figure is present if member m of struct s is not 0 and not NULL.
#define FIGURE_IF(s, m) .if_at = offsetof(struct s, m), .if_kind = FIGURE_KIND(((struct s *)0)->m)

struct figure_rows {
    const struct figure *rows;
    size_t count;
};
#define FIGURE_ROWS(table) ((struct figure_rows){table, sizeof(table) / sizeof(table)[0]})

// Adds the values in `from` to o, row by row. Numbers that are not finite, and empty texts, become null.
void figures_put(cJSON *o, struct figure_rows rows, const void *from);
// Adds only the predicted rows.
void figures_put_predicted(cJSON *o, struct figure_rows rows, const void *from);
// Combines the ranks' figures and puts the results into o, for rows whose parent object exists in o. A rank without the
// figure does not count. If no rank has it, the result is 0 (a mean: null); a list, or a figure that ranks have under a
// condition of its own, is then left out.
void figures_join(cJSON *o, struct figure_rows rows, const cJSON *ranks);
// Writes {"key":value, ..} and a newline. Doubles have 17 digits, so equal text means equal bits. They always have a
// point or an exponent, so readers that guess types treat every line's value as a float. Values that are not finite
// are null. Returns the length.
#define FIGURE_LINE_MAX 512
int figures_line(char line[FIGURE_LINE_MAX], struct figure_rows rows, const void *from);
// figure_value: a row's value, NAN if it is no number. figure_is_there: whether the figure is present.
double figure_value(const struct figure *f, const void *from);
bool figure_is_there(const struct figure *f, const void *from);

// Copies to element those members of a rank's report that the list `in` includes.
void figures_take(cJSON *element, struct figure_rows rows, unsigned in, const cJSON *report);
// Returns the number at a path; NAN: none.
double figure_number(const cJSON *o, const char *path);

// Returns the row of the object or list that contains f, or NULL if f is at the top or that object has no row.
const struct figure *figure_parent(struct figure_rows rows, const struct figure *f);
// Writes a number as tables show it: "247 KiB" if the unit is "bytes", else "0.0123", "42.1", "1,643"; NAN: "-". Returns text.
#define FIGURE_CELL 32
const char *figure_cell(char text[FIGURE_CELL], const struct figure *f, double x);

// The rows of one kind of document, except those that are excluded from it.
struct figure_document {
    const char *file, *prefix;  // prefix is put before the keys
    struct figure_rows rows;
    unsigned kind;     // bit of figure.excluded_from
    bool predicted;    // only predicted rows
    const char *when;  // condition of rows without their own; NULL: always
};
// Adds each of these rows to the list as {file, key, type, unit, when, meaning, words}.
void figures_describe(cJSON *list, const struct figure_document *d);

#endif
