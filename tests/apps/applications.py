"""The applications that a checkpoint must bring back, each with the same output as if nothing had happened."""

from __future__ import annotations

import re

from apps.harness import Application


def _without_times(text: bytes) -> bytes:
    """Drop lines that tell of wall-clock or processor time, dates, and speeds that depend on them."""
    return b"\n".join(
        line
        for line in text.split(b"\n")
        if not re.search(rb"(?i)time|WALL|CPU|\d\d:\d\d|MPI|tau/day|timesteps/s|Performance|%|PID|Mem", line)
    )


def _until_timings(text: bytes) -> bytes:
    """Return what LAMMPS says of its atoms: not how long it took to create them, and to do all the rest."""
    return re.sub(rb"(?m)^ *\w+ CPU = .* seconds$", b"", text.partition(b"Loop time")[0])


APPLICATIONS = (
    Application("pipeline", ("sh", "{programs}/pipeline.sh", "300"), 40, fast=True),
    Application("python-threads", ("{python}", "{programs}/threads.py", "2000"), 20, fast=True),
    Application("python-multiprocessing", ("{python}", "{programs}/processes.py", "400"), 40, fast=True),
    Application("python-asyncio", ("{python}", "{programs}/echo_server.py", "500"), 40, fast=True),
    Application("python-mmap", ("{python}", "{programs}/mapped.py", "500"), 40, outputs=("mapped.bin", "appended.txt"), fast=True),
    Application("numpy", ("{python}", "{programs}/arrays.py", "500"), 40, outputs=("vector.npy",), modules=("numpy",), fast=True),
    Application("pytorch", ("{python}", "{programs}/train.py", "150", "0"), 20, modules=("torch",)),
    Application("pytorch-workers", ("{python}", "{programs}/train.py", "150", "2"), 20, modules=("torch",)),
    # Its first process would have an io_uring.
    Application(
        "pytorch-ranks",
        (
            "{ours}",
            "-m",
            "perdure",
            "without-io-uring",
            "--",
            "{python}",
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node=2",
            "{programs}/ranks.py",
            "300",
        ),
        20,
        modules=("torch",),
    ),
    Application("scikit-learn", ("{python}", "{programs}/forest.py", "40"), 8, modules=("sklearn",)),
    Application("node", ("node", "{programs}/counter.js", "500"), 40, needs=("node",), fast=True),
    Application("jvm", ("java", "{programs}/Counter.java", "500"), 40, needs=("java", "javac")),
    Application("sqlite-wal", ("{python}", "{programs}/database.py", "500", "WAL"), 40, fast=True),
    Application("sqlite-delete", ("{python}", "{programs}/database.py", "500", "DELETE"), 40),
    Application("perl", ("perl", "{programs}/counter.pl", "500"), 40, needs=("perl",), fast=True),
    Application("r", ("Rscript", "{programs}/walk.R", "500"), 40, needs=("Rscript",)),
    Application(
        "c-timers",
        ("./timers", "1200"),
        120,
        needs=("cc",),
        build=(("cc", "-O2", "-o", "timers", "{programs}/timers.c", "-lrt"),),
        fast=True,
    ),
    *(
        Application(
            f"openmpi-{ranks}",
            ("mpirun", "--allow-run-as-root", "--oversubscribe", "-np", str(ranks), "./ranks", "500"),
            40,
            needs=("mpirun", "mpicc"),
            build=(("mpicc", "-O2", "-o", "ranks", "{programs}/ranks.c"),),
        )
        for ranks in (2, 4)
    ),
    Application(
        "gromacs",
        ("sh", "{programs}/water.sh", "20000"),
        200,
        outputs=("run.trr",),
        needs=("gmx",),
        progress_file="run.log",
    ),
    Application(
        "lammps",
        ("lmp", "-in", "{programs}/melt.lmp", "-var", "steps", "12000", "-log", "none"),
        50,
        outputs=("final.data",),
        needs=("lmp",),
        shown=_until_timings,
    ),
    Application(
        "quantum-espresso",
        ("sh", "{programs}/hydrogen.sh", "60", "60"),
        120,
        needs=("pw.x",),
        shown=_without_times,
    ),
    Application("four-gigabytes", ("{python}", "{programs}/big.py", "60", "4096"), 3, modules=("numpy",)),
)
