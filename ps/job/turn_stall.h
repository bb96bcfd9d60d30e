// Stalls as a thread sees them that looks at its messages in turns: this process was frozen, slept, or waited for a core. Its
// peers were not silent then: nobody listened. (shared/time/stall.h finds all stalls of a process, by a thread of its own.)
#ifndef STARRING_PS_JOB_TURN_STALL_H
#define STARRING_PS_JOB_TURN_STALL_H

#include <stdint.h>

#define TURN_STALL_WORDS 96

// Of one thread. {0} to begin with. Moments and times in seconds.
struct turn_stall {
    double turn_s;           // when its last turn was
    double woke_s, stood_s;  // behind what it stood still last, and for how long; 0: it never did
};

// A turn of the thread, whose peers are lost when they are silent for lost_s. Returns by how much they were less silent
// than the clock says, mostly 0: of the time since the last turn, a 32nd of lost_s counts at most. Where a host is so busy
// that its threads take turns of a second, peers wait as long for theirs; a peer that is silent for 33 turns is lost however
// slow they are.
double turn_stall_excused(struct turn_stall *s, double lost_s, double now);

// A moment at which a peer was heard last, moved by what turn_stall_excused returned.
double turn_stall_moved(double heard_s, double excused_s, double now);

// Another thread of this process, whose turns are short, as the thread that watches it sees it. {0} to begin with.
struct turning {
    uint64_t turns;
    double seen_s;  // when they last changed, or had not begun
};

// Seconds since its last turn, without excused_s, which turn_stall_excused returned to the watcher: where a process stands still,
// all its threads do.
double turning_stood(struct turning *t, uint64_t turns, double excused_s, double now);

// To be put behind "silent for ..": that this process had stood still shortly before or since a peer was heard last;
// "" where it had not. Returns out.
const char *turn_stall_words(const struct turn_stall *s, double lost_s, double heard_s,
                             char out[TURN_STALL_WORDS]);

#endif
