// Finds the files that a path of data names: a file, a directory's, those of a pattern, in the order of their names; and
// tells which of them are for training and which are held out. Private to shared/data.
#ifndef STARRING_SHARED_DATA_DATA_FILES_H
#define STARRING_SHARED_DATA_DATA_FILES_H

#include <stdbool.h>

// The part of a directory's or pattern's files that is wanted, where their names tell both parts apart; else all files.
enum data_part { PART_TRAIN, PART_HELD_OUT };

struct data_files {
    char **paths;
    int count;
    bool several;  // a directory or a pattern
    bool
        held_out;  // names say of some files that they are to be trained on, and of others that they are held out
    bool only_held;  // of a directory or pattern: every name says that the file is held out
    char *left_out;  // then: those that are neither, for people; NULL: none
};

// path: a file, a directory (of which the files of one kind are read: texts or tokens), a pattern as glob(3) has it, with
// braces and ~, or the beginning of a pair of Megatron's. tokenizer: "byte", "bin" or NULL. 0, or -1 after naming the path;
// data_files_free in both cases.
int data_files_find(struct data_files *f, const char *path, const char *tokenizer, enum data_part part);
void data_files_free(struct data_files *f);

#endif
