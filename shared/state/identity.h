// The identity of a run: an ordered list of keys and values. The ranks compare it before the first step; a
// checkpoint stores it for the run that resumes from it. An error names the key that differs, with both values.
//
//     keys      the configuration's keys as a user writes them ("optimizer.params.lr", "steps"), and others:
//               "model.layers", "model.tensors", "data", "data.held_out", "program", ..
//     values    texts: JSON of a number or a switch, a text without its quotes
//     uses      of a key (enum identity_use): which ranks and runs must agree on it. The configuration's keys have
//               their uses in their rows (shared/config/config.h), the others in identity.c
//
// Paths, timeouts, verbosity and speed settings are not compared: one path may name different files on two
// machines. Contents are compared: the tokens of the data, the sizes of a model.
#ifndef STARRING_SHARED_STATE_IDENTITY_H
#define STARRING_SHARED_STATE_IDENTITY_H

#include "shared/config/config.h"
#include "shared/core/unit.h"
#include "shared/model/spec.h"

struct cJSON;
struct topology;

struct identity_key {
    const char *key;     // NULL: end of the list
    unsigned uses;       // of enum identity_use; 0: never compared
    const char *advice;  // advice for ranks that differ in it; NULL: use one configuration
};
// An unknown key ("") must agree everywhere: a key that another version of the program compared must not be ignored.
struct identity_key identity_key(const char *key);
// Returns row i of all keys: first those that are not in the configuration, then the configuration's.
struct identity_key identity_key_at(size_t i);

struct token_source;  // shared/data/data.h

struct identity;  // plain data; read-only once created, so any thread may use it

struct identity_source {
    const struct config *config;      // resolved; for a process that computes, also for its machine
    const struct layout *layout;      // NULL: not known
    const struct model_spec *spec;    // NULL: not known
    const struct token_source *data;  // NULL: this process computes nothing and has no key of IDENTITY_LOCAL
};
// These return an identity that the caller frees with identity_destroy.
struct identity *identity_make(const struct identity_source *s);
struct identity *identity_from_json(const struct cJSON *o);  // an object of texts; other values are skipped
struct identity *identity_parse(const char *text);           // text of identity_text; NULL: not an object
void identity_destroy(struct identity **i);

// Adds a key that is not in the configuration ("recovery.resumed"), or changes its value. Copies both.
void identity_put(struct identity *i, const char *key, const char *value);
const char *identity_get(const struct identity *i, const char *key);  // NULL: no such key

// Returns xxh64 over the keys and values with these uses; keys of IDENTITY_LOCAL count only if uses includes it.
uint64_t identity_hash(const struct identity *i, unsigned uses);
struct cJSON *identity_json(const struct identity *i);  // {key: text, ..} of all keys; the caller frees it
char *identity_text(const struct identity *i);          // identity_json as one line (malloc'd)

struct identity_side {
    const char *name;  // "worker 1", "the checkpoint"
    const struct identity *identity;
};
// Describes where a and b differ in a key with any of these uses (malloc'd). Returns NULL if they agree.
//     "worker 1 has optimizer.params.lr = 0.001, the scheduler has 0.0003; worker 1 has seed = 2, .."
// The first three differences are named, the others counted. A key that only one side has is a difference, unless it is a
// key of IDENTITY_LOCAL.
char *identity_difference(struct identity_side a, struct identity_side b, unsigned uses);
// As identity_difference, for ranks of one run; the text ends with advice (malloc'd). Returns NULL if they agree.
char *identity_disagreement(struct identity_side a, struct identity_side b);
// As identity_disagreement, for two lines of identity_text. A line that cannot be parsed, or is NULL, has no keys.
char *identity_texts_disagreement(const char *name_a, const char *a, const char *name_b, const char *b);

// ---------------------------------------------------------------- between ranks
// The ranks of a run compare their identities before the first step and after a resume.
//
//     1. the ranks' hashes are compared in one sum    if all are equal: done, for any number of ranks
//     2. rank 0's text is sent to all, as doubles     only if hashes differ
//     3. each rank compares; the first rank that differs sends its text to all: every rank fails with it
//
// Keys of one kind of device are compared by the ranks with that device.
//
// Collective: every rank of the topology calls it. Returns 0, or -1 on every rank after fail() named the first rank
// that differs from worker 0, the keys and both values. Only worker 0 and the ranks that differ print the error.
int identity_agree(struct topology *t, const struct identity *i);

#endif
