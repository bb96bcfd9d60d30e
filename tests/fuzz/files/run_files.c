// Small files of a run directory that a later process reads: state.json, history.jsonl. The first byte says which.
#include <stdlib.h>
#include <string.h>

#include "shared/core/error.h"
#include "shared/report/history.h"
#include "shared/report/run_state.h"
#include "tests/fuzz/fuzz.h"

static void take_row(void *ctx, const struct history_row *r) {
    (void)ctx;
    bool life = r->kind == HISTORY_START;
    FUZZ_CHECK(life ? r->start > 0 && r->epoch > 0 && r->restarts >= 0 : r->worker >= 0 && r->step > 0,
               "kind %d: start %d, epoch %u, restart %d, worker %d", r->kind, r->start, r->epoch, r->restarts,
               r->worker);
    FUZZ_CHECK(r->step >= 0 && r->lost >= 0, "step %lld, %lld lost", (long long)r->step, (long long)r->lost);
}

FUZZ_TARGET(run_files) {
    struct fuzz_bytes in = {data, size};
    switch (fuzz_below(&in, 2)) {
        case 0: {
            struct run_state s;
            fuzz_put("state.json", in.p, in.left);
            run_state_read(fuzz_dir(), &s);
            FUZZ_CHECK(run_phase_word(s.phase)[0], "no word");
            FUZZ_CHECK(memchr(s.why, 0, sizeof s.why) && memchr(s.host, 0, sizeof s.host),
                       "a text without end");
            FUZZ_CHECK(!s.own && (s.phase != RUN_RUNNING || s.pid > 0), "a run without a process");
            break;
        }
        default: {
            fuzz_put(HISTORY_FILE, in.p, in.left);
            history_each(fuzz_dir(), take_row, NULL);
            struct history_row l = history_last_start(fuzz_dir());
            FUZZ_CHECK(l.kind == HISTORY_START && !l.epoch == !l.start, "epoch %u of start %d", l.epoch,
                       l.start);
            break;
        }
    }
}
