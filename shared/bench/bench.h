// The frame of all benches of `starring bench`. A bench is a row: its options, how it sets up, how it measures one round,
// and which figures it writes. The frame reads the options, calls the row's functions, and prints the figures.
//
//     read the options into the state
//     set_up
//     begin       once per case (a payload size, an operation, ..); without begin there is one case
//       round     warm_up times without counting, then `rounds` times
//       rows      writes the case's figures
//     finish      figures of all cases
//     tear_down   after an error too
//
// Figures  Each value is written once, into the document that --json prints, in the units of its key (seconds, bytes,
//          FLOP per second). Lines and columns of the table are constant texts that name these values (bench_line).
//          Keys that begin with '#' are for the table only: --json leaves them out.
// Status   Functions return 0 or the exit status after logging: EXIT_USAGE for a wrong request, EXIT_RUN_FAILED.
// Threads  The main thread. Another thread may write rows while the main thread waits for it.
#ifndef STARRING_SHARED_BENCH_BENCH_H
#define STARRING_SHARED_BENCH_BENCH_H

#include "kernels/backend.h"
#include "shared/config/cli.h"
#include "shared/core/json.h"

struct topology_table;

// A line above or below the table. In its text, and in a column's, {PATH} is a figure: "{floor.seconds}". PATH is
// looked up in the line's row and then in the document; of {A|B} the first that exists counts. A line without one of
// its figures is left out; such a cell is "-".
//     {x}            a text as it is; a number without decimals
//     {x:.2}         with two decimals
//     {x:.1G}        divided by 1e9; M, T likewise; m, u, % multiply by 1e3, 1e6, 100
//     {x:B}          bytes as "4.2 MiB"
//     {x:s}          "s" unless x is 1
//     {x?yes:no}     yes if x is true, else no
//     {@}            the row's key
struct bench_line {
    const char *label;  // printed in front of the text; NULL: "# text"
    const char *text;   // NULL ends the list
};
struct bench_column {
    const char
        *title;  // NULL ends the list. "GROUP|TITLE": GROUP is printed above this column and the next ones
    const char *unit;  // printed below the title, or NULL
    const char *text;  // begins with '<': aligned left
};
#define BENCH_LINES(...)          \
    (const struct bench_line[]) { \
        __VA_ARGS__, { 0 }        \
    }
#define BENCH_COLUMNS(...)          \
    (const struct bench_column[]) { \
        __VA_ARGS__, { 0 }          \
    }

// An option of a bench. The frame reads its value into a member of the bench's state, and names the default in --help.
struct bench_option {
    const char *name, *metavar, *help;  // as in struct cli_option
    const char *path;                   // a configuration key that it sets, or CLI_SET
    enum { BENCH_ASKED, BENCH_IS_INTEGER, BENCH_IS_SIZE, BENCH_IS_CHOICE, BENCH_IS_STRING } kind;
    size_t at, bytes;              // offset and bytes of the member
    int64_t low, high, otherwise;  // otherwise 0: no fixed default, or the help names it
    const char *const *words;      // (high) the words of a choice; low is unused
    const char *text;              // default of a string
};
#define BENCH_AT(s, m) .at = offsetof(struct s, m), .bytes = sizeof((struct s *)0)->m
// The bench reads it itself, by cli_get.
#define BENCH_ASKS     .kind = BENCH_ASKED
#define BENCH_KEY(key) .path = key
// A whole number, for an int or a 64-bit member.
#define BENCH_INTEGER(s, m, least, most, fallback) \
    .kind = BENCH_IS_INTEGER, .low = least, .high = most, .otherwise = fallback, BENCH_AT(s, m)
#define BENCH_SIZE(s, m, fallback) .kind = BENCH_IS_SIZE, .otherwise = fallback, BENCH_AT(s, m)
// One of a list of words; the member, an int or an enum, receives its index.
#define BENCH_WORDS(s, m, list, count, fallback) \
    .kind = BENCH_IS_CHOICE, .words = list, .high = count, .otherwise = fallback, BENCH_AT(s, m)
#define BENCH_CHOICE(s, m, list) BENCH_WORDS(s, m, list, sizeof(list) / sizeof *(list), 0)
// One of the first `count` types; the member is an enum dtype.
#define BENCH_DTYPE(s, m, count, fallback) BENCH_WORDS(s, m, bench_dtypes, count, fallback)
extern const char *const bench_dtypes[DT_COUNT];
#define BENCH_STRING(s, m, fallback) .kind = BENCH_IS_STRING, .text = fallback, BENCH_AT(s, m)
#define BENCH_OPTIONS(list)          .options = (list), .option_count = sizeof(list) / sizeof *(list)

struct bench_run;
#define BENCH_END (-1)  // set_up: the work is done, nothing is printed. begin: no case is left

struct bench {
    const char *about;                   // its line in the list of benches
    struct cli_command command;          // named "bench NAME", without options
    const struct bench_option *options;  // the frame adds --rounds and --json
    size_t option_count;
    size_t state_bytes;   // bytes of bench_run's state
    int rounds, warm_up;  // default of --rounds, 0: one round without that option; rounds before them
    int (*set_up)(struct bench_run *r);
    int (*begin)(struct bench_run *r);  // NULL: one case
    int (*round)(struct bench_run *r);
    int (*rows)(struct bench_run *r);
    int (*finish)(struct bench_run *r);  // NULL: nothing to do. The figures are printed whatever it returns
    void (*tear_down)(struct bench_run *r);
    // ---- the table
    const struct bench_line *head;       // above the table
    const struct bench_column *columns;  // NULL: no table
    const char *each;  // an object of a row whose members have a line each; NULL: a line per row
    const struct bench_line *below;  // below the lines of a row
    const struct bench_line *foot;   // below the table
    const char *list;                // key of the rows in the document
    bool rows_last;                  // rows are printed together, when all are known
};

struct bench_run {
    const struct bench *bench;
    const struct topology_table *topologies;
    const struct cli_args *args;
    void *state;      // (state_bytes), zero at first
    int at;           // number of the current case
    int rounds;       // number of counted rounds
    int round;        // -warm_up .. rounds - 1; the warm-up's are negative
    bool json;        // --json is given
    bool silent;      // nothing is printed
    cJSON *document;  // has "bench" and "rounds" before set_up
    // ---- the frame's own
    const cJSON **pending;  // rows that have not been printed
    int pending_count;
    int *widths;                  // (columns); NULL before the head has been printed
    struct bench_series *series;  // all that bench_measured has filled
};

// Adds a row and returns it. key NULL: it is appended to the bench's list; else it is that member of the document.
cJSON *bench_row(struct bench_run *r, const char *key);
// Prints the rows added so far, for a bench that adds many rows in one round.
void bench_print_rows(struct bench_run *r);

// Adds figures to o, the document or a row of it: BENCH_PUT(o, NUMBER("bytes", n), TEXT("model", name), FLAG("direct", x)).
// Numbers that are not finite and empty texts become null.
struct bench_cell {
    const char *key;
    enum { BENCH_NUMBER, BENCH_TEXT, BENCH_FLAG } kind;
    double number;
    const char *text;
};
#define NUMBER(key, x) \
    { key, BENCH_NUMBER, (double)(x), NULL }
#define TEXT(key, text) \
    { key, BENCH_TEXT, 0, text }
#define FLAG(key, x) \
    { key, BENCH_FLAG, x, NULL }
#define BENCH_PUT(o, ...) bench_put(o, (const struct bench_cell[]){__VA_ARGS__, {0}})
void bench_put(cJSON *o, const struct bench_cell *cells);

// `starring bench`: argv holds the words after it. Runs the named bench, or lists all. Returns the exit status.
int bench_command(const struct bench *const *all, int count, const struct topology_table *t, int argc,
                  char **argv);
// Returns "step | kernels | ..", which the caller frees.
char *bench_names(const struct bench *const *all, int count);

// ---------------------------------------------------------------- the command line
// Returns the index of the option's value in words, 0 if the option is not given; -1 after naming the option and the
// words.
int bench_choice(const struct cli_args *a, const char *option, const char *const *words, int count);
// Refuses what needs more memory than is left: "`what` 3.0 GiB of memory, 2.0 GiB are left (..): `advice`". limit: NULL
// for this machine's. Returns 0, or -1 after logging.
struct memory_limit;
int bench_check_memory(const struct memory_limit *limit, double need_bytes, const char *what,
                       const char *advice);

// ---------------------------------------------------------------- measurements
#define BENCH_ROUNDS_MOST 99
struct bench_series {
    double *values;  // (capacity)
    int count, capacity;
    struct bench_series *next;  // the next one in bench_run's list
};
void bench_series_add(struct bench_series *s, double value);
void bench_series_free(struct bench_series *s);
// Adds the value of a counted round to a series of the state. The frame empties it before the next case, and frees it.
void bench_measured(struct bench_run *r, struct bench_series *s, double value);
// Returns the smallest value that at least share * count values do not exceed (nearest rank); 0 for an empty series.
double bench_series_quantile(const struct bench_series *s, double share);
// Returns the median; for an even count, the mean of the middle two.
double bench_series_median(const struct bench_series *s);
// (largest - smallest) / median: the uncertainty of one value.
double bench_series_spread(const struct bench_series *s);
// The median over the rounds of a / b, both from the same round: a slow round affects both and cancels out.
double bench_series_ratio(const struct bench_series *a, const struct bench_series *b);

// a / b; 0 if b is 0.
static inline double bench_ratio(double a, double b) { return b > 0 ? a / b : 0; }

// Returns text: "ext4", "tmpfs", .., or "0x.." for an unknown file system of dir.
#define FILE_SYSTEM_BYTES 24
const char *file_system_of(const char *dir, char text[FILE_SYSTEM_BYTES]);

#endif
