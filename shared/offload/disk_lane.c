#include "shared/offload/disk_lane.h"

#include <errno.h>

int disk_piece_done(struct disk_piece *p, const struct disk_transfer *t, long answer,
                    struct disk_trouble *why) {
    if (answer == -EINTR || answer == -EAGAIN) return 1;
    if (answer > 0) {
        p->at += (size_t)answer;
        p->bytes -= (size_t)answer;
        if (!p->bytes) return 0;
        // O_DIRECT takes no less than a block, so what ends within one has met the end of the file.
        if (!t->direct || (size_t)answer % DISK_ALIGN == 0) return 1;
        answer = 0;
    }
    // Nothing written, though nothing is wrong: nobody promises that trying again would end.
    if (t->offset + p->at < why->offset)
        *why = (struct disk_trouble){t->offset + p->at, answer ? (int)-answer : t->write ? EIO : 0};
    return -1;
}
