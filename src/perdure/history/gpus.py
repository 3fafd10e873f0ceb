"""How many GPUs an attempt had, as SQL over the texts in which Slurm says so. Called by `convert`.

In order of trust: AllocTRES; AllocGRES (before 20.11); ReqTRES and ReqGRES, only of attempts that were given nodes; the options
in SubmitLine, for sites whose accounting does not track GPUs. `gpu_source` says which it was.
"""

from __future__ import annotations


def tres_count(text: str) -> str:
    """SQL: GPUs (DOUBLE) in a TRES list, NULL when it names none.

    ``gres/gpu=8`` is the total and stands beside its parts ``gres/gpu:a100=8``: the parts are added up only where no total is.
    """
    typed = f"list_sum(list_transform(regexp_extract_all({text}, 'gres/gpu:[^=,]+=([0-9.]+)', 1), lambda part: try_cast(part AS DOUBLE)))"
    total = f"split_part(split_part({text}, 'gres/gpu=', 2), ',', 1)"
    # Whole numbers are the usual case and the cheap one.
    return (
        f"coalesce(try_cast({total} AS INTEGER), CASE WHEN contains({text}, 'gres/gpu=') THEN try_cast({total} AS DOUBLE)"
        f" WHEN contains({text}, 'gres/gpu:') THEN {typed} END)"
    )


def tres_type(text: str) -> str:
    """SQL: the GPU model in a TRES list, NULL when none is named; several are joined by ``+``."""
    several = f"array_to_string(regexp_extract_all({text}, 'gres/gpu:([^=,]+)=', 1), '+')"
    rest = f"split_part({text}, 'gres/gpu:', 2)"
    return (
        f"CASE WHEN NOT contains({text}, 'gres/gpu:') THEN NULL WHEN split_part({text}, 'gres/gpu:', 3) <> '' THEN {several}"
        f" ELSE split_part({rest}, '=', 1) END"
    )


def gres_count(text: str, nodes: str) -> str:
    """SQL: GPUs (DOUBLE) of a GRES list such as ``gpu:a100:2`` or ``gpu:2(IDX:0-1),shard:4``, which counts them on each of `nodes`."""
    counts = f"regexp_extract_all({text}, '(?:^|,)(?:gres:)?gpu(?::[^,:(]*[^,:(0-9][^,:(]*)?(?::([0-9]+))?(?:[(][^)]*[)])?(?:,|$)', 1)"
    each = "CASE WHEN coalesce(part, '') = '' THEN 1 ELSE try_cast(part AS DOUBLE) END"
    return f"CASE WHEN contains({text}, 'gpu') THEN list_sum(list_transform({counts}, lambda part: {each})) * greatest({nodes}, 1) END"


_TYPED_COUNT = "(?:[A-Za-z][^:,= ]*[:=])?([0-9]+)"


def submit_line_count(text: str, nodes: str) -> str:
    """SQL: GPUs (DOUBLE) that a submission's options ask for: ``--gpus``, ``-G``, ``--gpus-per-node``, ``--gres``.

    The line has lost its quoting, and values may follow a blank. A list such as ``h100:1,h200:2`` adds up. ``--gpus-per-task`` and
    ``--gpus-per-socket`` are not resolved: how many tasks there were is not in it. What looks like one option and names no GPUs, such as
    the ``-G`` in a script's name, leaves the word to the next.
    """
    options = {
        "total": "(?:--gpus[= ]|(?:^| )-G ?)",
        "node": "--gpus-per-node[= ]",
        "gres": "--gres[= ]",
    }

    def values(option: str) -> str:
        return f"regexp_extract({text}, '{options[option]}([^ ]+)', 1)"

    def total(option: str) -> str:
        parts = f"string_split({values(option)}, ',')"
        count = f"try_cast(regexp_extract(part, '^{_TYPED_COUNT}$', 1) AS DOUBLE)"
        return f"list_sum(list_transform({parts}, lambda part: {count}))"

    gres = gres_count(values("gres"), nodes)
    return (
        f"coalesce(CASE WHEN contains({text}, '--gpus-per-node') THEN {total('node')} * greatest({nodes}, 1) END,"
        f" CASE WHEN contains({text}, '--gpus') OR contains({text}, '-G') THEN {total('total')} END,"
        f" CASE WHEN contains({text}, '--gres') THEN {gres} END)"
    )
