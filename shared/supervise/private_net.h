// A loopback of its own for a job on one host: what its processes listen on, nobody else can connect to. For what cannot be
// told to ask its peers for a secret (Open MPI's mpirun, which a stranger's bytes can crash).
#ifndef STARRING_SHARED_SUPERVISE_PRIVATE_NET_H
#define STARRING_SHARED_SUPERVISE_PRIVATE_NET_H

// Moves the calling process, which has one thread, and its children into a new network namespace whose loopback is up:
// root by itself, others within a new user namespace, in which they are who they were (user_namespaces(7)). Between fork
// and exec: async-signal-safe calls alone. 0, or -1: the process stays in the network where it was (no permission, as in
// most containers, or no such kernel); it still may run. Resets PR_SET_PDEATHSIG.
int private_net_enter(void);

#endif
