"""Freeze and thaw one process tree: CRIU, the files around its images, what would prevent it. Stands on `store`, `model`, `base`."""
