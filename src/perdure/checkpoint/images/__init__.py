"""CRIU's image files, read and mended without CRIU: page maps for the store, open files for the manifest, timers before a restore."""

from perdure.checkpoint.images.pagemaps import runs_of
from perdure.checkpoint.images.timers import cure_timerfds

__all__ = ["cure_timerfds", "runs_of"]
