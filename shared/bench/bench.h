// The benches of `starring bench`. argv holds what follows the bench's name; they return the program's exit status.
#ifndef STARRING_SHARED_BENCH_BENCH_H
#define STARRING_SHARED_BENCH_BENCH_H

struct topology_table;

// One process's training step beside a large matrix product of the same run.
int bench_step(const struct topology_table *topologies, int argc, char **argv);
// Each operation beside a copy (what moves bytes) or a large matrix product (what computes), timed in turn with it
// in the same run; and the optimizer alone.
int bench_kernels(int argc, char **argv);
int bench_adam(int argc, char **argv);
// Which of cuBLASLt's algorithms each matrix product of a model's training step takes on this GPU, by measurement;
// a table of them for later runs.
int bench_tune(const struct topology_table *topologies, int argc, char **argv);
// Writing and reading back a model's checkpoint, in turn with plain writes and reads of the same bytes.
int bench_checkpoint(const struct topology_table *topologies, int argc, char **argv);
// What offload to disk lives on: reading, writing and updating through shared/offload/, beside fio on the same file; and
// the optimizer on the host's cores beside a copy.
int bench_offload(int argc, char **argv);

#endif
