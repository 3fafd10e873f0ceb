"""Run the parts of the benchmark: ``python -m bench [PART…] [arguments of the one part]``. Exit status 1 when a goal was missed."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Sequence

import bench


def part_names() -> list[str]:
    """Return the names of all parts, sorted: every module of the package, packages in it left out."""
    return sorted(module.name for module in pkgutil.iter_modules(bench.__path__) if not (module.ispkg or module.name.startswith("_")))


def main(arguments: Sequence[str]) -> int:
    """Run the parts named first in `arguments`, or all; what follows the names goes to the part."""
    known = part_names()
    names: list[str] = []
    rest = list(arguments)
    while rest and rest[0] in known:
        names.append(rest.pop(0))
    if rest and not rest[0].startswith("-"):
        print(f"bench: no part {rest[0]!r}; parts: {', '.join(known)}", file=sys.stderr)
        return 2
    if rest and len(names) != 1:
        print("bench: options belong to one part: name it first", file=sys.stderr)
        return 2
    good = True
    for name in names or known:
        part = importlib.import_module(f"bench.{name}")
        print(f"\n{name}: {(part.__doc__ or '').splitlines()[0]}", flush=True)
        good &= bench.print_figures(part.report(rest))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
