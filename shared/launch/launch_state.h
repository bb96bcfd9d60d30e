// What launch.c, which starts and watches, and launch_deaths.c, which says what follows from a death, both know. Nobody
// else includes it.
#ifndef STARRING_SHARED_LAUNCH_LAUNCH_STATE_H
#define STARRING_SHARED_LAUNCH_LAUNCH_STATE_H

#include <signal.h>
#include <stdbool.h>
#include <sys/types.h>

#include "shared/launch/launch.h"

struct child {
    char role[16], name[32];  // "server", "server 1"
    int rank;
    pid_t pid;  // 0: ended
    bool orderly, expendable;
    bool ended_well;
    bool replaced;    // it was started again while the others went on
    int incident;     // the last one that it died in; 0: none
    double moved_s;   // when it was seen last, and no signal had stopped it; 0: it was not looked at
    bool waited_for;  // that it has not ended yet has been said
    // The job has been asked what becomes of it without this process, that has died; 0: no.
    pid_t asked;
    double asked_s;
    char why[128], when[96];
    bool told_to;  // to die: nobody is surprised
    bool still;    // it was killed because a signal had stopped it
};

// Of the job, without a process that has died.
enum fate { FATE_WITHOUT, FATE_ANEW, FATE_ENDS };

struct launcher {
    struct launch_options o;
    struct child *children;
    int count, running;
    double start_s;
    double kill_at_s;      // SIGKILL then; 0: nobody has been told to end
    double rest_at_s;      // after an interruption: the rest is told to end then; 0: not known yet
    int status;            // the job's, once something went wrong
    int interrupted_by;    // SIGINT or SIGTERM, 0: neither
    double interrupted_s;  // when the first came
    int incidents;    // deaths that children were started again after, those of one life of the job together
    int replaced;     // children that were started again while the others went on
    int lives, life;  // of the job, as it has said; in which the last death was
    int link;         // "lost PID .." lines; 0: none
    int alive;        // a child that says there that it lives, and says so again and again; 0: none
    int64_t said_step;          // of the job, as that one says; -1: it has not
    double alive_s, watched_s;  // when it did last; when this launcher looked last
    double looked_s;            // when it looked last whether children are stopped
    double ended_s;             // since when one that has ended well is seen; 0: there is none
    char line[320];             // of them, what has come of the next one
    size_t length;
    bool anew;  // all are being ended, to be started again
    char why[160];
    struct last_word *word;  // NULL: nobody hears it
    sigset_t signals, before;
};

void launcher_signal_all(struct launcher *l, int number);
// SIGTERM to all that run, and SIGKILL after the grace period; once.
void launcher_end_rest(struct launcher *l);
bool launcher_has_begun(const struct launcher *l);  // a step is known to be done

// ---------------------------------------------------------------- launch_deaths.c
// Takes the children that have ended, and does what follows.
void launcher_reap(struct launcher *l);
// Of children that live together all are gone, one of them by a death after which they are started again.
void launcher_begin_anew(struct launcher *l);
// "without", "anew" or "ends REASON", of the child that was process pid.
void launcher_hear_fate(struct launcher *l, int pid, const char *words);
// Of deaths before that moment the job has said nothing, and will not.
void launcher_decide_unanswered(struct launcher *l, double asked_before_s);
// All have ended: the deaths that nobody has answered are told.
void launcher_forget_unanswered(struct launcher *l);

#endif
