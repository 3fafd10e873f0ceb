"""Under Slurm: opting in, the job's task, its limits and preemptions, installing and removing. Called by `cli`."""
