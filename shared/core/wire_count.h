// Bytes sent and received by one rank, counted where they leave and arrive. Payload is what the textbook formulas
// count: the weights and gradients that TRAINING STEPS move. Everything else is control and is counted separately:
// headers, messages, scalars, and the weights moved by load_unit, by evaluation passes (PASS_EVAL) and by finish.
// After finish, payload / steps is therefore exact.
#ifndef STARRING_SHARED_CORE_WIRE_COUNT_H
#define STARRING_SHARED_CORE_WIRE_COUNT_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

// Counts of injected faults in messages that arrived (shared/core/message_fault.h).
enum wire_fault { FAULT_MESSAGES, FAULT_LOST, FAULT_TWICE, FAULT_OVERTAKEN, WIRE_FAULTS };

struct wire_count {
    _Atomic uint64_t payload_sent, payload_received;  // bytes
    _Atomic uint64_t across_sent, across_received;    // payload to and from ranks of other groups
    // Bytes that would be payload, to and from a rank's own server.
    _Atomic uint64_t local_sent, local_received;
    _Atomic uint64_t control_sent, control_received;  // bytes
    // Messages that were resent because no answer came, and their bytes, which are control.
    _Atomic uint64_t repeats, repeated_bytes;
    _Atomic uint64_t faults[WIRE_FAULTS];  // messages
    // Weights copied to be sent, until the transport has released them: bytes now, and at most.
    _Atomic uint64_t copied, copied_peak;
    // Bytes of offloaded state, in training steps: between device and host, and between host and disk.
    _Atomic uint64_t host_down, host_up, disk_read, disk_written;
};

// Copies the counts while other threads count.
static inline void wire_count_copy(struct wire_count *to, const struct wire_count *from) {
    _Atomic uint64_t *counts = (_Atomic uint64_t *)to;  // struct wire_count consists of these
    const _Atomic uint64_t *others = (const _Atomic uint64_t *)from;
    for (size_t i = 0; i < sizeof *to / sizeof *counts; i++)
        atomic_store(&counts[i], atomic_load(&others[i]));
}

#endif
