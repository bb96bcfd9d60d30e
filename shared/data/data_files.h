// Finds the files that a data path names: a file, a directory's files, or those of a pattern, in the order of their
// names. Separates training files from held-out ones. Private to shared/data.
#ifndef STARRING_SHARED_DATA_DATA_FILES_H
#define STARRING_SHARED_DATA_DATA_FILES_H

#include <stdbool.h>

// The files of a directory or pattern that are wanted, if their names distinguish the two; otherwise all files.
enum data_part { PART_TRAIN, PART_HELD_OUT };

struct data_files {
    char **paths;
    int count;
    bool several;  // a directory or a pattern
    // Names mark some files for training, and others as held out.
    bool held_out;
    bool only_held;  // directory or pattern: every name marks a held-out file
    char *left_out;  // with held_out: the files that are neither, to print; NULL: none
};

// path: a file; a directory, of which the files of one kind are read (texts or tokens); a pattern of glob(3), with
// braces and ~; or the common beginning of a pair of Megatron's. tokenizer: "byte", "bin" or NULL. Returns 0, or -1
// after logging the path. The caller calls data_files_free in both cases.
int data_files_find(struct data_files *f, const char *path, const char *tokenizer, enum data_part part);
void data_files_free(struct data_files *f);

#endif
