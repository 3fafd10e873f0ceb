"""Checkpoints at rest: content-addressed chunks in packs, authenticated manifests, lives and leases, retention, garbage collection."""
