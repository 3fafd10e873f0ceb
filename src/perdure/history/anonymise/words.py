"""What a word is, and which words are public: those that the anonymiser itself may write. Called by all of this package."""

from __future__ import annotations

import re

from perdure.history import classify
from perdure.model.attempt import Outcome

LETTERS = r"[^\x00-\x40\x5b-\x60\x7b-\x7f]+"
"""A run of letters: ASCII letters and all that is not ASCII, so that no script, sign or bad byte is taken for a separator."""
_RUNS = re.compile(rf"{LETTERS}|[0-9]+")
BLOCK = r"[^\x00-\x2f\x3a-\x40\x5b-\x60\x7b-\x7f]+"
"""Letters and digits without a separator between. Read alike by Python and by RE2 (DuckDB), as is `LETTERS`."""
_BLOCK = re.compile(BLOCK)
_LETTERS = re.compile(LETTERS)

SHORTEST = 3
"""Shorter words say nothing of anybody and occur everywhere."""


def _listed(text: str) -> frozenset[str]:
    return frozenset(text.split())


STATES = frozenset(classify.CLASS_OF) | {"SPECIAL_EXIT", "REVOKED", "EXPEDITING", "STAGE_OUT", "POWER_UP_NODE", "REQUEUE", "RESV_DEL_HOLD"}
GPU_SOURCES = frozenset({"alloc_tres", "req_tres", "gres", "submit_line", "column", "none"})
GPU_MODELS = _listed("""
    nvidia amd intel tesla geforce quadro titan radeon instinct gpu rtx gtx ti super pcie sxm sxm2 sxm3 sxm4 sxm5 nvl hbm2 hbm3 hbm3e
    mig shard k20 k40 k80 m40 p4 p40 p100 v100 v100s t4 t40 a2 a10 a16 a30 a40 a100 a800 l4 l20 l40 l40s h20 h100 h200 h800 b100 b200
    b300 gh200 gb200 gb300 rtx2080 rtx3090 rtx4090 rtx5090 rtx6000 rtx8000 a4000 a5000 a6000 1080 1080ti 2080 2080ti 3080 3090 4090
    5090 5000 6000 8000 ada blackwell hopper ampere volta turing mi50 mi60 mi100 mi200 mi210 mi250 mi250x mi300 mi300a mi300x mi325x
    mi350x mi355x max pvc 1100 1550 1g 2g 3g 4g 7g 5gb 10gb 12gb 16gb 20gb 24gb 32gb 40gb 48gb 64gb 80gb 94gb 96gb 141gb
    """)
"""Parts of the names of GPU models, as sites put them together."""
SIGNALS = _listed("""
    HUP INT QUIT USR1 USR2 TERM CONT STOP TSTP KILL URG ALRM ABRT SIGHUP SIGINT SIGTERM SIGUSR1 SIGUSR2 SIGCONT
    """)
DEPENDENCIES = _listed("""
    after afterany afterburstbuffer aftercorr afternotok afterok expand singleton
    """)
AMOUNTS = frozenset({"unlimited", "infinite"})
PROGRAMS = frozenset({"sbatch", "srun", "salloc", "scrun"})

QUANTITIES = _listed("""
    array begin-delay core-spec cores-per-socket cpus-per-gpu cpus-per-task gpus gpus-per-node gpus-per-socket gpus-per-task mem
    mem-per-cpu mem-per-gpu mincpus nice nodes ntasks ntasks-per-core ntasks-per-gpu ntasks-per-node ntasks-per-socket priority
    sockets-per-node spread-job thread-spec threads-per-core time time-min tmp wait-all-nodes switches gres
    """)
"""Options of sbatch whose value is an amount: kept when it looks like one."""
FLAGS = _listed("""
    contiguous exclusive hold no-kill no-requeue overcommit oversubscribe parsable requeue reboot test-only verbose quiet wait
    use-min-nodes kill-on-invalid-dep ignore-pbs
    """)
"""Options of sbatch without a value."""
HIDDEN = _listed("""
    account acctg-freq batch bb bbf begin chdir cluster-constraint clusters comment constraint container container-id cpu-freq
    deadline delay-boot dependency distribution error exclude export export-file extra extra-node-info get-user-env gid gpu-bind
    gpu-freq gres-flags hint input job-name licenses mail-type mail-user mcs-label mem-bind network nodefile nodelist open-mode output
    partition power prefer profile propagate qos reservation signal tres-bind tres-per-task uid wckey wrap
    """)
"""Options of sbatch whose value may name somebody or something: the option is kept and its value is not."""
OPTIONS = QUANTITIES | FLAGS | HIDDEN
SHORT_OPTIONS = {
    "A": "account", "a": "array", "b": "begin", "B": "extra-node-info", "C": "constraint", "c": "cpus-per-task", "D": "chdir",
    "d": "dependency", "e": "error", "G": "gpus", "H": "hold", "i": "input", "J": "job-name", "k": "no-kill", "L": "licenses",
    "M": "clusters", "m": "distribution", "N": "nodes", "n": "ntasks", "o": "output", "O": "overcommit", "p": "partition", "Q": "quiet",
    "q": "qos", "S": "core-spec", "s": "oversubscribe", "t": "time", "v": "verbose", "W": "wait", "w": "nodelist", "x": "exclude",
}  # fmt: skip


def public() -> frozenset[str]:
    """Return every word that the output may hold because Slurm or Perdure put it there, not a person, in lower case."""
    found = set()
    sources = (STATES, GPU_SOURCES, GPU_MODELS, SIGNALS, DEPENDENCIES, PROGRAMS, OPTIONS, [outcome.value for outcome in Outcome], AMOUNTS)
    for source in sources:
        for phrase in source:
            found.add(phrase.casefold())
            found |= spans(phrase)
    return frozenset(found)


def spans(text: str) -> set[str]:
    """Return all words in `text`, in lower case: its runs of letters or digits, and what unbroken neighbours make together.

    ``gpu001-x7`` → gpu, 001, gpu001, x, 7, x7.
    """
    found = set()
    for block in _BLOCK.findall(text.casefold()):
        runs = _RUNS.findall(block)
        for start in range(len(runs)):
            word = ""
            # Hostile text can alternate for ever; names do not.
            for run in runs[start : start + 12]:
                word += run
                found.add(word)
    return found


def revealing(text: str) -> set[str]:
    """Return the words in `text`, in lower case, that could point to somebody: with three letters in a row or more.

    Amounts (``400G``, ``1-00:00:00``) are none.
    """
    return {word for word in spans(text) if any(len(run) >= SHORTEST for run in _LETTERS.findall(word))}
