"""The kinds of workload a fleet has, as one table. Read by `workloads`; a new kind is a new row."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class Kind:
    """How workloads of one kind tend to be. Hours are those of a one-GPU job; they grow with the size."""

    name: str
    weights: dict[str, float]
    """How common it is among workloads below one node (small), below 128 GPUs (middle), and above (large)."""
    stem: str
    pattern: str
    """Job name; ``{i}`` counts works or segments."""
    hours: float = 1.0
    longest_h: float = 120.0
    sigma: float = 0.2
    """Spread of run times within a workload."""
    works: float = 1.0
    """How many works a workload has, relative to the usual."""
    fails: float = 0.08
    fails_at_s: float = 180.0
    out_of_memory: float = 0.004
    cancels: float = 0.04
    low_qos: float = 0.15
    no_requeue: float = 0.15
    arrays: float = 0.0
    app_interval_h: float | None = None
    self_requeue: bool = False
    chain: bool = False
    over_limit: bool = False
    """Needs longer than its limit and saves nothing: each run loses everything."""
    unlimited: bool = False
    deadline: bool = False
    het: float = 0.0
    resubmits: float = 0.7


def _weights(small: float = 0.0, middle: float = 0.0, large: float = 0.0) -> dict[str, float]:
    return {"small": small, "middle": middle, "large": large}


KINDS: tuple[Kind, ...] = (
    Kind("debug", _weights(14, 6), "debug", "{stem}", hours=0.15, sigma=0.9, works=1.6, fails=0.45, fails_at_s=60.0, cancels=0.12),
    Kind("sweep", _weights(30, 10), "sweep", "{stem}-lr3e-{i}", hours=1.0, works=1.8, arrays=0.8, low_qos=0.45),
    Kind("eval", _weights(14, 8), "eval", "{stem}-step{i}", hours=0.4, works=1.4, arrays=0.3, low_qos=0.3),
    Kind("train", _weights(26, 44, 24), "train", "{stem}-v{i}", hours=1.3, fails=0.12, het=0.03),
    Kind("finetune", _weights(8, 16), "finetune", "{stem}-run{i}", hours=1.6, fails=0.1, low_qos=0.25),
    Kind("notebook", _weights(6), "nb", "{stem}", hours=4.0, sigma=0.5, cancels=0.7, fails=0.02, no_requeue=1.0, resubmits=0.1),
    Kind("buggy", _weights(4, 5, 4), "exp", "{stem}_try{i}", works=0.7, fails=1.0, fails_at_s=600.0, resubmits=0.85, cancels=0.02),
    Kind("memory", _weights(3, 2), "infer", "{stem}-batch{i}", out_of_memory=0.35, arrays=0.2),
    Kind("over-limit", _weights(2, 3, 3), "simulate", "{stem}-case{i}", hours=2.0, over_limit=True, works=0.5, fails=0.05, resubmits=0.6),
    Kind("deadline", _weights(3, 3), "nightly", "{stem}-{i}", hours=0.8, deadline=True, works=0.8),
    Kind(
        "self-requeue",
        _weights(1, 6, 30),
        "train",
        "{stem}-sr{i}",
        hours=3.0,
        app_interval_h=1.0,
        self_requeue=True,
        works=0.5,
        no_requeue=0,
    ),
    Kind(
        "chain",
        _weights(0, 4, 40),
        "pretrain",
        "{stem}_s{i}",
        hours=5.0,
        app_interval_h=1.5,
        chain=True,
        works=0.5,
        no_requeue=0.1,
        het=0.08,
    ),
    Kind("serve", _weights(1, 2), "serve", "{stem}", hours=30.0, sigma=0.4, works=0.1, unlimited=True, cancels=0.6, fails=0.02),
)

WORDS: tuple[str, ...] = (
    "amber", "birch", "cedar", "dune", "ember", "fjord", "grove", "heron", "iris", "juniper", "kelp", "larch", "maple", "nectar", "onyx",
    "pearl", "quartz", "raven", "slate", "thyme", "umber", "violet", "willow", "yarrow", "zephyr", "aurora", "basalt", "coral", "delta",
    "falcon", "glacier", "harbor", "indigo", "jasper", "krill", "lagoon", "meadow", "nimbus", "opal", "prairie", "reef", "summit",
    "tundra",
)  # fmt: skip

QUIRKY_NAMES: dict[str, str] = {
    "delimiter_in_name": "{stem}|lr=3e-{i}|seed{i}",
    "bad_utf8": "{stem}-r\udce9sum\udce9-{i}",
    "unicode_name": "{stem}-训练-{i}",
    "markup_name": "{stem}<script>alert({i})</script>",
    "formula_name": '=HYPERLINK("http://example.invalid/{i}","{stem}")',
}
"""Names that break careless readers: key of the count in ``truth.json`` and pattern."""
