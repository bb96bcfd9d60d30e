// Bytes sent and received by one rank, counted where they leave and arrive. Payload is what the
// formulas of DESIGN 7 speak of; everything else (headers, control messages, scalars) is apart.
#ifndef STARRING_SHARED_CORE_WIRE_COUNT_H
#define STARRING_SHARED_CORE_WIRE_COUNT_H

#include <stdatomic.h>
#include <stdint.h>

struct wire_count {
    _Atomic uint64_t payload_sent, payload_received;  // bytes
    _Atomic uint64_t control_sent, control_received;  // bytes
};

#endif
