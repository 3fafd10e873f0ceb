"""What this machine can do for checkpointing, CRIU aside: facts, and what they mean to a person. Called by `perdure doctor`."""
