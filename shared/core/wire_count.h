// Bytes sent and received by one rank, counted where they leave and arrive. Payload is what the
// textbook formulas count: the weights and gradients that TRAINING STEPS move. Everything else is
// control and counted apart: headers, messages, scalars, and the weights moved by load_unit, by
// evaluation passes (PASS_EVAL) and by finish. So after finish, payload / steps is exact.
#ifndef STARRING_SHARED_CORE_WIRE_COUNT_H
#define STARRING_SHARED_CORE_WIRE_COUNT_H

#include <stdatomic.h>
#include <stdint.h>

struct wire_count {
    _Atomic uint64_t payload_sent, payload_received;  // bytes
    _Atomic uint64_t control_sent, control_received;  // bytes
};

#endif
