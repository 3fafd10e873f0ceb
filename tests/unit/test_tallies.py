"""What runs and stories add up to, taken out of the database in parts."""

from __future__ import annotations

import numpy as np
from factories import fill, row

from perdure.history import chains, table, tallies, workloads

_NAMES = ("a", "b", "c", "d", "e")
_OUTCOMES = ("success", "user_failure", "infrastructure", "walltime", "success", "preempted", "success")


def test_parts_give_what_the_whole_gives(monkeypatch):
    rows = [
        row(3 * index, 1 + index % 3 / 2, job_id=str(index - (index % 4 == 3)), name=_NAMES[index % 5], outcome=_OUTCOMES[index % 7])
        for index in range(60)
    ]
    connection = table.connect(threads=1)
    fill(connection, rows)
    chains.build(connection)
    workloads.build(connection)
    whole = tallies.count(connection, len(_NAMES))
    monkeypatch.setattr(tallies, "PART_ROWS", 20)
    parts = tallies.count(connection, len(_NAMES))
    assert whole["attempts"].sum() == 60
    assert whole["jobs"].sum() == 45
    assert whole["stories"].sum() < 45
    assert whole.keys() == parts.keys()
    for name in whole:
        np.testing.assert_array_equal(whole[name], parts[name], err_msg=name)
