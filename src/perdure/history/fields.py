"""Slurm's accounting fields: their names over the versions, which of them the attempts table uses, and which hold free text.

Every reader turns its source into *canonical text fields*: the names in `USED`, each a text in sacct's own spelling. One SQL
conversion (`convert`) makes attempts of them, so that all sources are read by the same rules.
"""

from __future__ import annotations

USED: tuple[str, ...] = (
    "cluster", "dbindex", "jobid", "jobidraw", "uid", "user", "account", "partition", "qos", "submit", "eligible", "start", "end",
    "elapsedraw", "elapsed", "suspended", "timelimitraw", "timelimit", "state", "stateflags", "exitcode", "nnodes", "allocnodes",
    "alloccpus", "ncpus", "alloctres", "reqtres", "allocgres", "reqgres", "gpus", "nodelist", "failednode", "restarts", "planned",
    "workdir", "submitline", "jobname",
)  # fmt: skip
"""Canonical fields, lower case. `stateflags` and `gpus` exist in other sources only: sacct text has no such field."""

ALIASES: dict[str, str] = {
    "reserved": "planned",  # renamed in 23.02
    "jobstate": "state",
    "job_id": "jobid",
    "allocnode": "allocnodes",
    "alloc_gres": "allocgres",
    "req_gres": "reqgres",
    "ncpu": "ncpus",
}
"""Other spellings of a used field, lower case: Slurm's own former names and those of common exports."""

FREE_TEXT: frozenset[str] = frozenset(
    {
        "jobname", "workdir", "submitline", "comment", "admincomment", "systemcomment", "extra", "wckey", "constraints", "container",
        "stdin", "stdout", "stderr", "licenses", "mcslabel", "reason", "reservation",
    }
)  # fmt: skip
"""Fields whose content a user or an admin chose: the only ones in which a delimiter or a line break is believed."""

KNOWN: frozenset[str] = frozenset(  # as words of a text, so that the list can be compared with `sacct --helpformat` at a glance
    """
    account admincomment allocation alloccpus allocgres allocnodes alloctres associd avecpu avecpufreq avediskread avediskwrite avepages
    averss avevmsize blockid cluster comment constraints consumedenergy consumedenergyraw container cputime cputimeraw dbindex
    derivedexitcode elapsed elapsedraw eligible end exclusive exitcode extra failednode flags gid group jobid jobidraw jobname layout
    licenses maxdiskread maxdiskreadnode maxdiskreadtask maxdiskwrite maxdiskwritenode maxdiskwritetask maxpages maxpagesnode
    maxpagestask maxrss maxrssnode maxrsstask maxvmsize maxvmsizenode maxvmsizetask mcslabel mincpu mincpunode mincputask ncpus nnodes
    nodelist ntasks originalsluid oversubscribe partition planned plannedcpu plannedcpuraw priority qos qosraw qosreq reason reqcpufreq
    reqcpufreqgov reqcpufreqmax reqcpufreqmin reqcpus reqgres reqmem reqnodes reqreservation reqtres reserved reservation reservationid
    restarts resvcpu resvcpuraw segmentsize sluid start state stderr stdin stdout submit submitline suspended systemcomment systemcpu
    timelimit timelimitraw totalcpu tresusageinave tresusageinmax tresusageinmaxnode tresusageinmaxtask tresusageinmin
    tresusageinminnode tresusageinmintask tresusageintot tresusageoutave tresusageoutmax tresusageoutmaxnode tresusageoutmaxtask
    tresusageoutmin tresusageoutminnode tresusageoutmintask tresusageouttot uid user usercpu wckey wckeyid workdir
    """.split()  # noqa: SIM905
)
"""Every field of sacct from 20.11 to 26.05, and ReqGRES and AllocGRES of before."""


def canonical(name: str) -> str:
    """Return the canonical form of a field's name: lower case, former names replaced by today's."""
    lower = name.strip().lower()
    return ALIASES.get(lower, lower)


def pull_command(*names: str) -> str:
    """Return the shortest sacct command that gives the fields `names`."""
    return f"sacct -a -D -X -P --format=JobIDRaw,{','.join(names)},…"
