// The weights' files of a Hugging Face directory as one text, so that two machines see whether they have the same ones.
#ifndef STARRING_SHARED_HF_HF_FILES_H
#define STARRING_SHARED_HF_HF_FILES_H

// "2 files, 548105171 bytes, xxh64 0123456789abcdef" (malloc'd): of their names, sizes and samples, 256 of 64 KiB spread
// evenly over each file, its beginning and end among them; all of a file of up to 16 MiB. Other weights differ in almost
// every byte, so samples tell them apart; what they can miss is a larger file in which a few places were changed by hand.
// A file that cannot be read counts as empty: hf_open will name it. NULL: the directory has no such file.
char *hf_files_identity(const char *dir);

#endif
