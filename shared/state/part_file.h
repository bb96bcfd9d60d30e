// One participant's file of a checkpoint, written from its beginning to its end while it is hashed:
//
//     DIR/worker-0.safetensors    fp32 pieces "master/block.3.wqkv@4096", "state0/block.3.wqkv@4096", .. in the order of
//                                 the ranges, of weights "weights/block.3.wqkv@4096" of the run's type; then the extras, I64
//     DIR/worker-0.json           the sidecar {"file","bytes","xxh64"}: its existence says that the file is complete and on
//                                 disk
//     DIR/worker-0.failed         or the reason why there will be none; empty where the disk had no room for it
//
// A range is cut into pieces, one for each logical tensor that it meets: gaps, padding and what is reserved behind a
// tensor are never written, so that the files do not depend on the padding of the layout. What is behind the @ is the
// piece's first element within its logical tensor.
//
// Threads   A file belongs to one thread at a time.
// Errors    Texts that name file and reason (malloc'd, the caller's); nothing is logged. The first one is kept: after it
//           part_file_write says -1 and part_file_finish gives the text.
// Speed     Large writes; the disk is kept busy while the next slice is being handed over, and what
//           part_file_finish waits for is the last slice.
#ifndef STARRING_SHARED_STATE_PART_FILE_H
#define STARRING_SHARED_STATE_PART_FILE_H

#include <stdint.h>

#include "kernels/dtype.h"
#include "shared/core/unit.h"

// Kinds below 0 are a rank's own state, such as what codes of its gradients have not said, or masters and optimizer states that
// no other rank has: every participant may have all elements of it, and they are written as they lie, a piece "NAME/UNIT@0"
// each, padding too.
enum state_kind {
    STATE_OWN = -2,  // - kind, of masters and optimizer states
    STATE_ERROR = -1,
    STATE_MASTER = 0,
    STATE_OPTIMIZER = 1,  // + i, i < STATE_OPTIMIZER_MOST
    STATE_WEIGHTS = 200,  // of the run's type: what a snapshot is made of
    STATE_NONE = 300,
};
#define STATE_OPTIMIZER_MOST 100
const char *state_name(char text[24], int kind);  // "error", "master", "state0", "own_state0", "weights"
// The kind of a piece of this name, "state0/..", and what follows the '/' in *rest; STATE_NONE: it is no piece's.
int state_kind_of(const char *name, const char **rest);

// Elements [begin, end) of a unit's weights, masters or one of its optimizer states.
struct state_range {
    int unit;
    int kind;  // enum state_kind
    int64_t begin, end;
    const void *data;  // element `begin`; part_file does not look at it
    // Where it is not in memory: brings all of it there until the next call; blocks. NULL: after logging.
    const void *(*read)(void *ctx, const struct state_range *r);
    void *ctx;
};

// Numbers beside the tensors. values: read by part_file_finish, not before.
struct part_extra {
    const char *name;  // any but "master/.." and "state<digit>..": "version/block.3"
    const int64_t *values;
    int count;
};

struct part_options {
    const char *dir;          // checkpoint_partial(); made if needed, but the run directory must be there
    const char *participant;  // letters, digits, '-': "worker-0"
    const struct layout *layout;
    enum dtype dtype;                  // of weights; a file with some need not survive a power cut
    const struct state_range *ranges;  // copied
    int count;                         // 0: a file without tensors
    const struct part_extra *extra;    // array and names copied, values not
    int extras;
};

struct part_file;
// NULL: *error says why, and NAME.failed has been left where that was possible.
struct part_file *part_file_create(const struct part_options *o, char **error);
int64_t part_file_bytes(const struct part_file *f);  // of the whole file, from the beginning on
// Elements [begin, end) of ranges[range]'s unit; data is element `begin`. Ranges in the order announced, each from its
// begin to its end, in as many slices as one likes; an empty range may be left out. Another order is an error.
int part_file_write(struct part_file *f, int range, int64_t begin, int64_t end, const void *data);
// The extras, fsync, the sidecar. Frees f. -1: the file is removed, NAME.failed left where that is possible.
int part_file_finish(struct part_file **f, char **error);
// There will be no file: removes it, leaves NAME.failed with the reason, frees f. NULL is allowed.
void part_file_discard(struct part_file **f, const char *why);
// The same without ever having had a file; makes dir if needed.
void part_file_refuse(const char *dir, const char *participant, const char *why);

#endif
