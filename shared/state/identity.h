// The identity of a run: an ordered list of keys and values, which its ranks compare before the first step, and a
// checkpoint keeps for the run that continues from it. A difference is named by its key, with both values.
//
//     keys      as a user writes them where they are the configuration's ("optimizer.params.lr", "steps"), else
//               "model.layers", "model.tensors", "data", "data.held_out", "program", ..
//     values    texts: JSON of a number or a switch, a text without its quotes
//     uses      of a key (enum identity_use): the ranks and runs that must agree on it. The configuration's keys have them in their
//               rows (shared/config/config_key.h), the others in identity.c
//
// Not compared is where something lies and how patient, talkative or quick a process is: the same text may be
// another file on every machine. The contents are compared: of the data its tokens, of a model its sizes.
#ifndef STARRING_SHARED_STATE_IDENTITY_H
#define STARRING_SHARED_STATE_IDENTITY_H

#include "shared/config/config.h"
#include "shared/core/unit.h"
#include "shared/model/spec.h"

struct cJSON;

struct identity_key {
    const char *key;     // NULL: there are no more
    unsigned uses;       // of enum identity_use; 0: nobody compares it
    const char *advice;  // for ranks that differ in it; NULL: to use one configuration
};
// One that nobody knows ("") must agree everywhere: what another version of the program has compared is not passed over.
struct identity_key identity_key(const char *key);
// First what no key of the configuration says, then these.
struct identity_key identity_key_at(size_t i);

struct token_source;  // shared/data/data.h

struct identity;  // plain data; read-only once made, so any thread

struct identity_source {
    const struct config *config;    // resolved, also for this machine where the process computes
    const struct layout *layout;    // NULL: none is known
    const struct model_spec *spec;  // NULL: none is known
    const struct token_source
        *data;  // NULL: this process computes nothing, and no key of IDENTITY_LOCAL is known
};
// The caller owns what these return, and frees it with identity_destroy.
struct identity *identity_make(const struct identity_source *s);
struct identity *identity_from_json(
    const struct cJSON *o);                         // an object of texts; what is no text is left out
struct identity *identity_parse(const char *text);  // identity_text's; NULL: it is none
void identity_destroy(struct identity **i);

// Adds a key that the configuration does not have ("recovery.resumed"), or gives it another value. Copies both.
void identity_put(struct identity *i, const char *key, const char *value);
const char *identity_get(const struct identity *i, const char *key);  // NULL: it is not there

// xxh64 over the keys and values of these uses; keys of IDENTITY_LOCAL count only where uses names that too.
uint64_t identity_hash(const struct identity *i, unsigned uses);
struct cJSON *identity_json(const struct identity *i);  // {key: value text, ..}, all of them; the caller's
char *identity_text(const struct identity *i);          // the same as one line (malloc'd)

struct identity_side {
    const char *name;  // "worker 1", "the checkpoint"
    const struct identity *identity;
};
// Where a and b differ in a key of these uses (one of the bits is enough), malloc'd; NULL: nowhere.
//     "worker 1 has optimizer.params.lr = 0.001, the scheduler has 0.0003; worker 1 has seed = 2, .."
// The first three are named, the others counted. A key that one side lacks differs, except one of IDENTITY_LOCAL.
char *identity_difference(struct identity_side a, struct identity_side b, unsigned uses);
// The same for ranks of one run, and behind it what to do (malloc'd); NULL: they agree.
char *identity_disagreement(struct identity_side a, struct identity_side b);
// The same of two lines of identity_text; one that is none (NULL) has no keys.
char *identity_texts_disagreement(const char *name_a, const char *a, const char *name_b, const char *b);

#endif
