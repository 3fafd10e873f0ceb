"""Perdure: which GPU jobs are worth saving, from a cluster's own accounting history.

The library's public door. Names are loaded when they are first used, so that `import perdure` costs nothing:
the analysis (DuckDB, NumPy) is the extra `advise`, which a compute node does not install.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from perdure._version import __version__

if TYPE_CHECKING:
    from perdure.advisor.advise import advise
    from perdure.advisor.policy_file import load_policy
    from perdure.advisor.ratings import rates
    from perdure.decision.policy import Policy
    from perdure.decision.verdict import decide
    from perdure.model.advice import Advice, Costs, JobQuestion, Size, Verdict
    from perdure.model.rates import Rates, encode_rates

_PUBLIC = {
    "advise": "perdure.advisor.advise",
    "decide": "perdure.decision.verdict",
    "load_policy": "perdure.advisor.policy_file",
    "rates": "perdure.advisor.ratings",
    "encode_rates": "perdure.model.rates",
    "Policy": "perdure.decision.policy",
    "Advice": "perdure.model.advice",
    "Costs": "perdure.model.advice",
    "JobQuestion": "perdure.model.advice",
    "Rates": "perdure.model.rates",
    "Size": "perdure.model.advice",
    "Verdict": "perdure.model.advice",
}

__all__ = [
    "Advice",
    "Costs",
    "JobQuestion",
    "Policy",
    "Rates",
    "Size",
    "Verdict",
    "__version__",
    "advise",
    "decide",
    "encode_rates",
    "load_policy",
    "rates",
]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(importlib.import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'perdure' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
