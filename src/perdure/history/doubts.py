"""What makes a record doubtful, or the same as another one, as SQL over the columns of the attempts table.

One definition for `checks`, which looks over a table that holds them all, and for `compact`, which judges each record while it is read.
"""

from __future__ import annotations

from perdure.history import times

RUNAWAY_S = 86_400
"""A job this long beyond its limit is not running: Slurm kills at the limit, give or take OverTimeLimit."""
DST_SLACK_S = 120

SAME = (
    "cluster, raw_id, db_index, CASE WHEN db_index IS NULL THEN coalesce(submit, start) END,"
    ' CASE WHEN db_index IS NULL AND coalesce(submit, start) IS NULL THEN hash(state, "end", elapsed_s) END,'
    " CASE WHEN state = 'RESIZING' AND db_index IS NULL THEN start END"
)
"""What makes two records the same attempt: the raw id, with the database's index where there is one, else with the submission. Each
cluster's database counts its own indices, and records need not name their cluster. A resized job has several records with one id,
each of another start. Without any time, only equal records are the same."""

MOST_FINAL = '("end" IS NOT NULL AND outcome <> \'censored\') DESC, "end" DESC NULLS LAST, elapsed_s DESC NULLS LAST'
"""Order of the records of one attempt, the one to keep first."""

RUNAWAY = f"state = 'RUNNING' AND elapsed_s > limit_s + {RUNAWAY_S}"


def walls(zone: times.Zone) -> str:
    """SQL: the columns ``wall_start`` and ``wall_end``, what the clocks of `zone` showed; to be selected below what uses them."""
    return f"""{times.to_wall("start", zone)} AS wall_start, {times.to_wall('"end"', zone)} AS wall_end"""


def clock_change(zone: times.Zone) -> str:
    """SQL: the times of the record occur twice or never in `zone`, or differ from what it ran by about an hour."""
    gap = "abs(abs(date_diff('second', wall_start, wall_end) - elapsed_s - coalesce(suspended_s, 0)) - 3600)"
    changing = [times.doubtful(wall, zone) for wall in ("wall_start", "wall_end")]
    doubtful = f"({' OR '.join(changing)})" if zone.changes else "false"
    return f"{doubtful} OR ({gap} <= {DST_SLACK_S} AND wall_end > wall_start)"


MIDNIGHT = "wall_start = date_trunc('day', wall_start) AND wall_start IS DISTINCT FROM submit"
"""SQL: the record starts at midnight sharp, and not because it was submitted then."""

_SPAN = "[0-9]{1,9}(-[0-9]{1,9}(:[0-9]{1,9})?)?"

ARRAY_CUT_OFF = (
    "CASE WHEN contains(job_id, '_[') THEN"
    f" NOT regexp_full_match(job_id, '[0-9]+_\\[{_SPAN}(,{_SPAN})*(%[0-9]+)?\\].*', 's') ELSE false END"
)
"""SQL: the id of a pending array whose list of tasks was cut off. Agrees with `checks.parse_array_id`."""
