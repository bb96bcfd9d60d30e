// Inside of decentral/gloo: the world, one channel, and what its parts call of each other.
//
//     gloo_shim         Gloo in C
//     gloo_world        the world, and the words that ranks say beside their calls
//     collective_gloo   channels, exchanges and their waits, the table
#ifndef STARRING_DECENTRAL_GLOO_GLOO_IMPL_H
#define STARRING_DECENTRAL_GLOO_GLOO_IMPL_H

#include "decentral/collective/collective_peers.h"
#include "decentral/gloo/gloo_load.h"
#include "decentral/gloo/gloo_shim.h"

// Slots of a mesh: primitives, then these.
enum { SLOT_WORD = COLLECTIVE_PRIMITIVES, SLOT_ADDRESSES };

// Words that a rank says to another one beside its calls. An answer shows that the question has left, and a question that the
// answer before it has: one of each is under way to a rank at most.
enum { WORD_ASK = PULSE_ASK, WORD_TELL = PULSE_TELL, WORD_ABORT /* of channel 0 */ };
#define WORD_KINDS (WORD_ABORT + COLLECTIVE_CHANNELS)

struct gloo_word {
    int kind;
    char at;    // of the pulse's
    bool lost;  // of an abort: it has given up another rank, which is as good as that one's death
    char why[250];
};

struct gloo_letter {
    struct gloo_word word;
    struct gloo_message *message;  // NULL: none
    bool under_way;                // of those that are sent
};

// The first rank that has aborted a channel. from -1: nobody has.
struct gloo_abort {
    int from;
    struct gloo_word word;
};

struct gloo_peer {
    struct gloo_letter in;               // the pulse's thread's own
    struct gloo_letter out[WORD_KINDS];  // what follows: with the lock
    double gone_s;                       // when its connection was found closed; 0: it was not
    char why[GLOO_WHY];
};

struct gloo_world {
    int rank, size;
    struct gloo_net *net;
    struct gloo_mesh *words;  // NULL: one rank is all
    struct rank_pulse *pulse;
    atomic_bool broken, lost;  // lost: this rank has given up another one
    atomic_bool gone;          // some rank is
    int next;                  // the peer that is looked at next
    int opened;                // channels so far
    pthread_mutex_t lock;
    struct gloo_peer *peers;  // (size)
    struct gloo_abort aborts[COLLECTIVE_CHANNELS];
};

struct collective_gloo {
    struct collective_peers peers;
    struct gloo_world *world;
    struct gloo_mesh *mesh;          // while the channel is made the world's words
    struct gloo_message **messages;  // (2*size) from rank i, to rank i; NULL: none is under way
    char *own_staging;               // NULL: it was given some
};

// ---- gloo_world.c
int gloo_world_start(struct gloo_world **out, const struct gloo_world_options *o);
void gloo_world_end(struct gloo_world **w);
// Tells every rank, this one too.
void gloo_world_abort(struct gloo_world *w, int channel, const char *why);
bool gloo_world_aborted(struct gloo_world *w, int channel, struct gloo_abort *out);  // whether somebody has
void gloo_world_gone(struct gloo_world *w, int peer, const char *why);  // a connection of it is closed
// Of the ranks that are missing one that has been gone for so long that nothing of it is under way any more, or -1.
int gloo_world_find_gone(struct gloo_world *w, const bool *missing, char *why);

#endif
