// `starring summary DIR`: the table of a run that has ended, and what is there of one that has not, or not
// orderly. Reads; writes DIR/summary.json only where a finished job on many machines has none yet.
//
// Exit status: 0 complete; 1 failed, interrupted or dead; 2 no run directory; 3 running.
#ifndef STARRING_SHARED_COMMAND_SUMMARY_COMMAND_H
#define STARRING_SHARED_COMMAND_SUMMARY_COMMAND_H

struct topology_table;

// argv holds what follows "summary".
int summary_command(const struct topology_table *t, int argc, char **argv);

#endif
