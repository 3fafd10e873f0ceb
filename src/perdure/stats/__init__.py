"""Pure statistics: arrays in, frozen results out. No clock, no files, no randomness of its own (generators come in as arguments)."""
