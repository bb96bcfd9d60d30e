// Small files of a run directory that a later process reads: state.json, lives.jsonl. The first byte says which.
#include <stdlib.h>
#include <string.h>

#include "shared/core/error.h"
#include "shared/launch/lives.h"
#include "shared/report/run_state.h"
#include "tests/fuzz/fuzz.h"

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
            fuzz_put("lives.jsonl", in.p, in.left);
            struct life l = lives_last(fuzz_dir());
            FUZZ_CHECK(l.epoch <= INT32_MAX && l.restarts >= 0, "epoch %u, restart %d", l.epoch, l.restarts);
            break;
        }
    }
}
