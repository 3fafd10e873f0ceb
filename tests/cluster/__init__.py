"""A Slurm cluster on one machine, for tests and for trying things by hand (`make cluster`).

Every node is a set of namespaces with its own root folder, processes, name and address; a node can be killed, cut off the network,
healed and booted again. The machine's own Slurm, accounts and settings are neither used nor touched, and everything ends with the
process that started it, however that ends.

- `rootfs`: one root file system per Slurm version, made once per machine and shared by all runs.
- `shape`: what a cluster looks like: nodes, partitions, Slurm's configuration.
- `machine`: one node, from its boot to its end, and the switch between nodes.
- `slurm`: the cluster: jobs, accounting, users, faults.
"""
