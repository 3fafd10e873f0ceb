"""The node's privileged service: who may ask for what, and supervisors for ordinary users. Called by `cli` and `slurm`."""
