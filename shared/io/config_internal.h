// What the files of the configuration reader share; nobody else includes this.
//
//   config.c          config_load: merge file and overrides, walk, resolve; defaults, topology strings
//   config_walk.c     visits every member of the tree: reads it, reports it, or refuses it
//   config_fields.c   the table of keys that are read, and how a value gets into its place
//   config_known.c    the table of keys that DeepSpeed knows and that are not read, and why
//   config_resolve.c  what depends on more than one key: topology, dtype, batch triangle, schedule
//   config_write.c    the resolved configuration as JSON, from the same table of fields
#ifndef STARRING_SHARED_IO_CONFIG_INTERNAL_H
#define STARRING_SHARED_IO_CONFIG_INTERNAL_H

#include <cjson/cJSON.h>

#include "shared/io/config.h"

// The configuration while it is being read: with what the resolved one no longer needs.
struct draft {
    struct config c;
    int stage;               // zero_optimization.stage
    bool fp16, bf16;         // their "enabled"
    int64_t last_iteration;  // scheduler.params.last_batch_iteration
};

enum field_type {
    FIELD_BOOL,
    FIELD_NOT,  // stored inverted
    FIELD_INT,
    FIELD_I64,  // also uint64_t: values are below 2^53
    FIELD_F32,
    FIELD_F64,
    FIELD_PAIR,   // two adjacent floats: [beta1, beta2]
    FIELD_TEXT,   // char *, owned
    FIELD_ENUM,   // int, index into names
    FIELD_SWITCH  // bool, index into two names
};

struct field {
    const char *path;  // "optimizer.params.lr"
    enum field_type type;
    size_t offset;             // in struct draft
    double low, high;          // of numbers, inclusive
    const char *const *names;  // of FIELD_ENUM and FIELD_SWITCH, NULL at the end
    const char *auto_value;    // JSON "auto" stands for; "": resolved later; NULL: no "auto" here
    const char *auto_why;      // where auto_value comes from
};

enum field_state { FIELD_ABSENT, FIELD_GIVEN, FIELD_AUTO };

#define FIELDS_MAX 80
size_t field_count(void);
const struct field *field_at(size_t i);
const struct field *field_find(const char *path);  // NULL: none
// Stores v in its place in d. -1 after fail("origin: path: expected .., got ..").
int field_store(const struct field *f, struct draft *d, const cJSON *v, const char *origin);
// The value as a new JSON item; NULL: an unset text.
cJSON *field_load(const struct field *f, const struct draft *d);
// The shortest decimal text that reads back as exactly v.
void shortest_f32(char text[32], float v);

enum known_use {
    KNOWN_NO_EFFECT,  // a hint to DeepSpeed's implementation; this one needs none
    KNOWN_IGNORED,    // asks for something not supported that leaves the arithmetic alone: warned about
    KNOWN_REFUSED     // asks for other arithmetic: an error unless its value means off
};
struct known {
    const char *path;
    enum known_use use;
    const char *harmless;  // JSON text of one more value that means off, or NULL
    const char *why;       // NO_EFFECT: why none; else what to do instead, or NULL
};
size_t known_count(void);
const struct known *known_at(size_t i);
const struct known *known_find(const char *path);
// Does the value ask for nothing: false, null, 0, "", "none", "auto", harmless, or a section that is
// not enabled, names no device, or holds only such members?
bool known_is_off(const struct known *k, const cJSON *v);

struct reading {
    struct draft *d;
    const char *file;  // for messages; "defaults" without a file
    const struct config_override *overrides;
    size_t override_count;
    enum field_state state[FIELDS_MAX];
    struct reported {  // known keys met, reported together at the end
        char *path;
        const struct known *known;
    } * met;
    size_t met_count;
};

// Optimizers and schedulers that exist elsewhere: refused before their parameters are looked at.
int config_check_types(const struct reading *r, const cJSON *root);
// Does the schedule have the key (a full path below "scheduler")?
bool config_schedule_has(enum schedule_type type, const char *path);
// Visits every member of root. 0, or -1 after fail().
int config_walk(struct reading *r, const cJSON *root);
void config_report(struct reading *r);  // what the walk met and nobody reads
// Who set the key: the file, a flag, or "--set a.b"; valid until text is reused.
const char *config_origin(const struct reading *r, const char *path, char text[128]);
enum field_state config_state(const struct reading *r, const char *path);
// Says what "auto" became: "FILE: KEY: auto -> VALUE (WHY)".
void config_say_auto(const struct reading *r, const char *path, const char *value, const char *why);
// Fills what depends on several keys and checks the whole. 0, or -1 after fail().
int config_resolve(struct reading *r);

#endif
