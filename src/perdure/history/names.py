"""Normalised job names: what makes `pretrain_s1` and `pretrain_s2` one workload. Called by `workloads` and by the anonymiser.

The rule stands here twice, as an SQL expression for tables and as a function for single names, from one list of steps;
a test holds both to the same results. Normalising a normalised name changes nothing.
"""

from __future__ import annotations

import re

# The one step that every row of a table pays for; the others run on the few names that are left different.
_DIGITS = (r"[0-9]+", "#")
# Numbers with their decimals and exponents: 7, 0.001, 3e-4, 1.5e+3.
_NUMBER = (r"#([.]#|[eE][-+]?#)*", "#")
# Lists of counters: `1,3,5` and `1-2` are as alike as `1` and `2`.
_LIST = (r"#([-_.,:/ ]*#)+", "#")
# What is left of a hash or a UUID once its digits are gone: three numbers or more among letters a to f, with no other
# letter beside them. A word of such letters alone (`facade`) stays.
_HASH = (r"(^|[^a-zA-Z#])[a-fA-F]{0,6}#([a-fA-F-]{1,6}#){2,}[a-fA-F]{0,6}([^a-zA-Z#]|$)", r"\1#\3")

# In order; the hash twice, since neighbours share a separator. Plain ASCII classes without look-around, which RE2
# (DuckDB) and Python read alike.
STEPS: tuple[tuple[str, str], ...] = (_DIGITS, _NUMBER, _LIST, _HASH, _HASH, _LIST)


def normalise(name: str | None) -> str:
    """Return `name` with numbers, hashes and counters replaced by ``#``; '' for None.

    ``pretrain_s1`` → ``pretrain_s#``, ``sweep-lr3e-4|seed7`` → ``sweep-lr#|seed#``.
    """
    text = (name or "").strip(" ")
    for pattern, replacement in STEPS:
        text = re.sub(pattern, replacement, text)
    return text


def coarse_sql(column: str) -> str:
    """Return the DuckDB expression of the first step alone: cheap, and never makes alike what `normalise` keeps apart."""
    pattern, replacement = _DIGITS
    return f"regexp_replace({column}, '{pattern}', '{replacement}', 'g')"


def normalise_sql(column: str) -> str:
    """Return the DuckDB expression that does to `column` (an SQL expression of type VARCHAR) what `normalise` does.

    It may be given the result of `coarse_sql` as well as the name itself.
    """
    pattern, replacement = _DIGITS
    first = f"regexp_replace(trim(coalesce({column}, ''), ' '), '{pattern}', '{replacement}', 'g')"
    rest = first
    for pattern, replacement in STEPS[1:]:
        rest = f"regexp_replace({rest}, '{pattern}', '{replacement}', 'g')"
    # Every further step needs two of them to change anything, and most names have one or none.
    return f"CASE WHEN contains(substr({first}, instr({first}, '#') + 1), '#') THEN {rest} ELSE {first} END"
