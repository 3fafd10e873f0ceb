"""The page cache, emptied where the kernel lets us. Called by `coldstart`."""

from __future__ import annotations

import os

_SWITCH = "/proc/sys/vm/drop_caches"


def drop() -> bool:
    """Write back what is dirty and empty the page cache, for all of this machine; False when it is not allowed."""
    os.sync()
    try:
        with open(_SWITCH, "w") as switch:
            switch.write("3\n")
    except OSError:
        return False
    return True
