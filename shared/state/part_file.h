// One participant's file of a checkpoint, written from start to end and hashed at the same time:
//
//     DIR/worker-0.safetensors    fp32 pieces "master/block.3.wqkv@4096", "state0/block.3.wqkv@4096", .. in the order
//                                 of the ranges; weights as "weights/block.3.wqkv@4096" of the run's type; then the
//                                 extras, I64
//     DIR/worker-0.json           the sidecar {"file","bytes","xxh64"}: it exists only when the file is complete and on
//                                 disk
//     DIR/worker-0.failed         instead of both: the reason why there will be no file; empty if the disk was full
//
// A range is cut into pieces, one for each logical tensor that it overlaps. Gaps, padding and reserved space after
// a tensor are never written, so the files do not depend on the padding of the layout. The number after the @ is
// the piece's first element within its logical tensor.
//
// Threads   A file belongs to one thread at a time.
// Errors    Texts that name file and reason (malloc'd, the caller frees them); nothing is logged. The first one is
//           kept: after it part_file_write returns -1 and part_file_finish returns the text.
// Speed     Writes are large. The disk works while the caller prepares the next slice; part_file_finish waits for the
//           last slice only.
#ifndef STARRING_SHARED_STATE_PART_FILE_H
#define STARRING_SHARED_STATE_PART_FILE_H

#include <stdint.h>

#include "kernels/dtype.h"
#include "shared/core/unit.h"

// Kinds below 0 are a rank's own state: the errors of gradient codes (what they have not sent yet), or masters and optimizer
// states that differ between ranks. Each participant may write all elements of it. It is written as it is in memory,
// with padding: one piece "NAME/UNIT@0" per unit.
enum state_kind {
    STATE_OWN = -2,  // STATE_OWN - k: this rank's own values of kind k, a master or an optimizer state
    STATE_ERROR = -1,
    STATE_MASTER = 0,
    STATE_OPTIMIZER = 1,  // STATE_OPTIMIZER + i: the i-th optimizer state, i < STATE_OPTIMIZER_MOST
    STATE_WEIGHTS = 200,  // of the run's type: the content of a snapshot
    STATE_NONE = 300,
};
#define STATE_OPTIMIZER_MOST 100
const char *state_name(char text[24], int kind);  // "error", "master", "state0", "own_state0", "weights"
// Returns the kind of a piece with this name, "state0/..", and in *rest the text after the '/'. STATE_NONE: not a
// piece's name.
int state_kind_of(const char *name, const char **rest);

// Elements [begin, end) of a unit's weights, masters or one of its optimizer states.
struct state_range {
    int unit;
    int kind;  // enum state_kind
    int64_t begin, end;
    const void *data;  // element `begin`; part_file does not read it
    // For values that are not in memory: returns them in memory, where they stay until the next call. Blocks. Returns NULL
    // after logging.
    const void *(*read)(void *ctx, const struct state_range *r);
    void *ctx;
};

// Numbers stored next to the tensors. values: read by part_file_finish, not before.
struct part_extra {
    const char *name;  // any but "master/.." and "state<digit>..": "version/block.3"
    const int64_t *values;
    int count;
};

struct part_options {
    const char *dir;          // checkpoint_partial(); created if needed, but the run directory must exist
    const char *participant;  // letters, digits, '-': "worker-0"
    const struct layout *layout;
    enum dtype dtype;                  // of weights; a file that has weights need not survive a power cut
    const struct state_range *ranges;  // copied
    int count;                         // 0: a file without tensors
    const struct part_extra *extra;    // array and names copied, values not
    int extras;
};

struct part_file;
// Returns NULL with *error saying why; NAME.failed has been written if possible.
struct part_file *part_file_create(const struct part_options *o, char **error);
int64_t part_file_bytes(const struct part_file *f);  // of the whole file
// Writes elements [begin, end) of ranges[range]'s unit; data is element `begin`. Ranges come in the order of the
// options, each from its begin to its end, in any number of slices. An empty range may be left out. Another order
// is an error.
int part_file_write(struct part_file *f, int range, int64_t begin, int64_t end, const void *data);
// Writes the extras, calls fsync, writes the sidecar. Frees f. Returns -1 after removing the file and writing
// NAME.failed if possible.
int part_file_finish(struct part_file **f, char **error);
// Gives up: removes the file, writes NAME.failed with the reason, frees f. *f may be NULL.
void part_file_discard(struct part_file **f, const char *why);
// Writes NAME.failed for a participant that never opened a file; creates dir if needed.
void part_file_refuse(const char *dir, const char *participant, const char *why);

#endif
