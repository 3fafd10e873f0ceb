"""From Slurm's words for how a job ended to the outcome classes, as SQL. Called by `convert`.

The rules, in order, after a state's own class (`CLASS_OF`, which the caller may override per state):

- Never started: ended without a start by its owner's or an operator's cancellation, by a failure or a deadline. A node failure
  or a failed boot stays an infrastructure event even at zero seconds.
- At the limit: FAILED or CANCELLED with elapsed ≥ limit is a wall-time end, and so is one that died of a signal in the last
  minute before it; jobs that catch the warning signal end so. COMPLETED stays a success.
- CANCELLED by the owner is a user's decision; by uid 0, or by anybody else where the owner is known, an operator's. Without a
  canceller, or with an unknown owner, it is the user's: an interruption is never made up.
- FAILED with a failed node named, or killed by SIGKILL, SIGTERM or SIGBUS, is suspected infrastructure.
"""

from __future__ import annotations

from collections.abc import Mapping

from perdure import errors
from perdure.model.attempt import Outcome

CLASS_OF: dict[str, Outcome] = {
    "COMPLETED": Outcome.SUCCESS,
    "FAILED": Outcome.USER_FAILURE,
    "CANCELLED": Outcome.USER_CANCEL,
    "TIMEOUT": Outcome.WALLTIME,
    "PREEMPTED": Outcome.PREEMPTED,
    "REQUEUED": Outcome.REQUEUED,
    "OUT_OF_MEMORY": Outcome.USER_FAILURE,
    "NODE_FAIL": Outcome.INFRASTRUCTURE,
    "BOOT_FAIL": Outcome.INFRASTRUCTURE,
    "LAUNCH_FAILED": Outcome.INFRASTRUCTURE,
    "RECONFIG_FAIL": Outcome.INFRASTRUCTURE,
    "DEADLINE": Outcome.DEADLINE,
    "RUNNING": Outcome.CENSORED,
    "SUSPENDED": Outcome.CENSORED,
    "COMPLETING": Outcome.CENSORED,
    "CONFIGURING": Outcome.CENSORED,
    "RESIZING": Outcome.CENSORED,
    "SIGNALING": Outcome.CENSORED,
    "STAGE_OUT": Outcome.CENSORED,
    "STOPPED": Outcome.CENSORED,
    "PENDING": Outcome.NEVER_STARTED,
    "REQUEUE_FED": Outcome.NEVER_STARTED,
    "REQUEUE_HOLD": Outcome.NEVER_STARTED,
    "RESV_DEL_HOLD": Outcome.NEVER_STARTED,
}
"""Class of each state that is known, the most frequent first; any other is `Outcome.OTHER`, kept and counted.

RESIZING rows are stretches of a job at a former size: exposure that ended without an event."""

DROPPED = "REVOKED"
"""A federation's sibling that started elsewhere: the same job is in the other cluster's records."""

LIMIT_SIGNAL_S = 60
"""A signal this close to the limit is taken as the limit's warning: Slurm checks limits once a minute at most."""

SHORT_CODES: dict[str, str] = {
    "BF": "BOOT_FAIL", "CA": "CANCELLED", "CD": "COMPLETED", "CF": "CONFIGURING", "CG": "COMPLETING", "DL": "DEADLINE", "F": "FAILED",
    "NF": "NODE_FAIL", "OOM": "OUT_OF_MEMORY", "PD": "PENDING", "PR": "PREEMPTED", "R": "RUNNING", "RQ": "REQUEUED", "RS": "RESIZING",
    "S": "SUSPENDED", "TO": "TIMEOUT", "LF": "LAUNCH_FAILED",
}  # fmt: skip
"""Slurm's compact codes, as some exports have them."""


def parse_overrides(pairs: Mapping[str, str]) -> dict[str, Outcome]:
    """Check a caller's table of state → outcome class. Raises `errors.UsageError` for a class that does not exist."""
    table = {}
    for state, name in pairs.items():
        try:
            table[state.strip().upper()] = Outcome(name.strip().lower())
        except ValueError:
            known = ", ".join(outcome.value for outcome in Outcome)
            raise errors.UsageError(f"outcome: no class called {name!r}", hint=f"one of: {known}") from None
    return table


def base_state(text: str) -> str:
    """SQL: the base state: the first word of State, compact codes spelled out."""
    word = f"CASE WHEN contains({text}, ' ') THEN split_part({text}, ' ', 1) ELSE {text} END"
    arms = " ".join(f"WHEN '{code}' THEN '{state}'" for code, state in SHORT_CODES.items())
    return f"CASE WHEN strlen({text}) <= 3 THEN CASE {text} {arms} ELSE {text} END ELSE {word} END"


def outcome(overrides: Mapping[str, Outcome]) -> str:
    """SQL: the outcome class, over the columns `state`, `canceller`, `started`, `elapsed_s`, `limit_s`, `exit_code`,
    `exit_signal`, `failed_node`, `uid_text` and `user` of `convert`'s typed rows."""
    table = {state: kind for state, kind in CLASS_OF.items() if state not in overrides}
    signalled = f"(exit_signal IN (1, 2, 9, 10, 12, 15) OR exit_code IN (15)) AND elapsed_s >= limit_s - {LIMIT_SIGNAL_S}"
    at_limit = f"limit_s > 0 AND (elapsed_s >= limit_s OR ({signalled}))"
    own = 'canceller = uid_text OR canceller = "user"'
    rules = {
        "COMPLETED": f"'{Outcome.SUCCESS}'",
        "FAILED": (
            f"CASE WHEN NOT started THEN '{Outcome.NEVER_STARTED}' WHEN {at_limit} THEN '{Outcome.WALLTIME}'"
            f" WHEN failed_node IS NOT NULL OR exit_signal IN (7, 9, 15) THEN '{Outcome.SUSPECTED_INFRASTRUCTURE}'"
            f" ELSE '{Outcome.USER_FAILURE}' END"
        ),
        "CANCELLED": (
            f"CASE WHEN NOT started THEN '{Outcome.NEVER_STARTED}' WHEN {at_limit} THEN '{Outcome.WALLTIME}'"
            f" WHEN canceller IS NULL OR {own} THEN '{Outcome.USER_CANCEL}'"
            f" WHEN canceller IN ('0', 'root', 'slurm') THEN '{Outcome.OPERATOR_CANCEL}'"
            f" WHEN uid_text IS NULL AND NOT regexp_full_match(canceller, '[^0-9]+') THEN '{Outcome.USER_CANCEL}'"
            f" ELSE '{Outcome.OPERATOR_CANCEL}' END"
        ),
        "DEADLINE": f"CASE WHEN NOT started THEN '{Outcome.NEVER_STARTED}' ELSE '{Outcome.DEADLINE}' END",
    }
    arms = [f"WHEN '{_quote(state)}' THEN '{kind}'" for state, kind in overrides.items()]
    arms += [f"WHEN '{state}' THEN {rules.get(state, repr(kind.value))}" for state, kind in table.items()]
    return f"CASE state {' '.join(arms)} ELSE '{Outcome.OTHER}' END"


def _quote(text: str) -> str:
    return text.replace("'", "''")
