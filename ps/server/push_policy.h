// A push policy: how the pushes of a key become updates, and all that follows from it. A job uses one policy, chosen
// once: the consistency's row names it (PUSH_POLICIES in ps/job/consistency.h). A policy is one file, push_*.c, with a const
// table of this type. The table says what a shard does with a push, how much memory the policy takes of each key, what
// waits at a server until it is used, and which settings the policy supports.
#ifndef STARRING_PS_SERVER_PUSH_POLICY_H
#define STARRING_PS_SERVER_PUSH_POLICY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ps/job/consistency.h"

struct arena;
struct gradient;
struct ps_message;
struct server_buffers;
struct server_core;
struct server_key;
struct wire_header;

struct push_policy {
    // 1. Settings. Each name is of the policy that takes this one's place (it may be itself) where
    enum push_policy_name by_units;  // workers keep two units at a time
    enum push_policy_name in_part;   // each step has its own set of workers (ps_in_part)
    enum push_policy_name replayed;  // the run repeats a recording
    bool codes;                      // it takes gradients in codes. On arrival servers decode them first.
    bool groups;                     // it first adds the gradients of each group of workers (reduce_group)
    // If one is PUSH_NONE or false, the setting is refused.

    // 2. Memory. Each may be NULL: nothing.
    // Takes the policy's own buffers of a key of n elements.
    void (*carve)(struct arena *a, const struct config *c, int64_t n, struct server_buffers *out);
    // The same in the textbook's formula, in bytes of an element.
    size_t (*textbook)(const struct config *c);
    // Bytes of the policy's own record of a key (server_key.own and more), in addition to the slots.
    int64_t (*key_bytes)(const struct config *c);
    // Bytes of gradients and answers that wait at a server at most. gradients, weights: those of one worker that the
    // server holds at the same time.
    double (*waiting)(const struct config *c, double gradients, double weights);

    // 3. Messages.
    // The server owns a frame when it arrives, and acknowledges it as taken. Else credits lend the frame: held ones
    // are acknowledged as held, and again when they are in the sum.
    bool takes_frames;
    // Replies carry copies of the weights. Else they are sent from the key's buffer, and an update waits until they are
    // sent.
    bool copies;
    // Pushes contain no pull. Pulls are messages of their own and, except the first, may arrive before an earlier push.
    bool pulls_apart;
    // Returns why this push, which is of the expected step and fits its key, cannot be taken; NULL: it can.
    const char *(*unfit)(const struct server_core *c, const struct server_key *k,
                         const struct wire_header *h);
    // Takes a push, and ownership of its gradient. Returns 0, or -1 with an error.
    int (*admit)(struct server_core *c, struct server_key *k, const struct wire_header *h,
                 const struct gradient *g);
    // Whether the worker's open pull of a key that is loaded can be answered.
    bool (*may_read)(const struct server_core *c, const struct server_key *k, int worker);

    // 4. The rest may be NULL.
    // Adds, applies and commits all that it can of the key, after an event that may unblock it (a decision, a pull, a
    // reply that has been sent). Returns 0, or -1 with an error.
    int (*advance)(struct server_core *c, struct server_key *k);
    // A pull has arrived, in a message of its own or in a push, for the weights of step `want`. Called before it is
    // taken.
    void (*before_pull)(struct server_core *c, struct server_key *k, const struct wire_header *h,
                        int64_t want);
    // Takes a SET of the scheduler. Returns 0, or -1 with an error.
    int (*fix)(struct server_core *c, const struct wire_header *h);
    // A new process has a worker's rank: the slots have released the old one's gradients.
    void (*replace_worker)(struct server_core *c, int worker);
    // A worker no longer pushes. Returns 0, or -1 with an error.
    int (*over)(struct server_core *c, int worker);
    // No worker pushes the key any more. Returns 0, or -1 with an error.
    int (*end)(struct server_core *c, struct server_key *k);
    // Changes the answer to a worker's pull before it is sent, to weights other than the newest.
    void (*answer)(struct server_core *c, struct server_key *k, int worker, struct ps_message *m);
    // Allocates and frees server_key.own.
    void (*open)(struct server_core *c, struct server_key *k);
    void (*close)(struct server_key *k);
};

#define PUSH_POLICY_TABLE(value, name) extern const struct push_policy push_##name;
PUSH_POLICIES(PUSH_POLICY_TABLE)

#endif
