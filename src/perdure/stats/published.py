"""Failure rates that others have published, to be shown beside a site's own and never mixed into them. Called by `report`.

They differ fourfold among themselves, and even one paper's figures do not follow one law: which is why a site's own history decides.
"""

from __future__ import annotations

import msgspec

__all__ = ["PUBLISHED", "PublishedRate"]


class PublishedRate(msgspec.Struct, frozen=True):
    """One published failure rate."""

    system: str
    rate_per_1000_node_days: float
    basis: str
    """What the figure counts, and of what size."""
    source: str


_META = "Kokolis et al. 2025, HPCA, arXiv 2410.21680"
_LLAMA = "Grattafiori et al. 2024, arXiv 2407.21783, table 5"
_LANL = "Los Alamos National Laboratory, LA-UR-05-7318, computed from the released records"


def rate_from_mttf(mttf_hours: float, nodes: float) -> float:
    """Return failures per 1000 node-days of jobs on `nodes` nodes that fail every `mttf_hours` on average."""
    return 24_000.0 / (mttf_hours * nodes)


PUBLISHED: tuple[PublishedRate, ...] = (
    PublishedRate("Meta RSC-1, fit", 6.50, "the authors' fitted r_f, 16,000 A100", _META),
    PublishedRate("Meta RSC-2, fit", 2.34, "the authors' fitted r_f, 8,000 A100", _META),
    PublishedRate("Meta RSC-1, jobs of 8 GPUs", rate_from_mttf(47.7 * 24, 1), "measured MTTF 47.7 days", _META),
    PublishedRate("Meta RSC-1, jobs of 1,024 GPUs", rate_from_mttf(7.9, 128), "measured MTTF 7.9 hours", _META),
    PublishedRate("Llama 3 training", rate_from_mttf(54 * 24 / 419, 2048), "419 unplanned interruptions in 54 days on 16,384 H100", _LLAMA),
    PublishedRate("LANL system 18", 3.20, "node failures, 1,024 nodes without GPUs", _LANL),
    PublishedRate("LANL system 19", 3.04, "node failures, 1,024 nodes without GPUs", _LANL),
    PublishedRate("LANL system 20", 3.56, "node failures, 512 nodes without GPUs", _LANL),
    PublishedRate("LANL system 8", 1.82, "node failures, nodes without GPUs", _LANL),
)
"""The table, in the order in which it is shown."""
