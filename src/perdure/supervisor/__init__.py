"""Keep one workload alive: launch, triggers, checkpoints, resume, lives."""
