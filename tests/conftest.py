"""Shared by all tests: inputs that live beside the checkout, what a test may require, and the command line as a process."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import hypothesis
import pytest
import s3server
import supervised
from cluster import rootfs, shape, slurm
from postgres import Server

# How long an example takes says how busy the machine is, and nothing about the code.
hypothesis.settings.register_profile("suite", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("suite")

ROOT = Path(__file__).resolve().parent.parent
SHARED = Path(os.environ.pop("PERDURE_TEST_SHARED", ROOT.parent / "shared"))


def _lack_of_criu() -> str | None:
    from perdure import errors
    from perdure.base import settings
    from perdure.checkpoint.criu import locate

    try:
        locate.find(locate.places(settings.load({}, working_directory=Path("/")), os.environ))
    except errors.EnvironmentUnfit as error:
        return f"{error} ({error.hint})"
    return None


def _lack_of_gpu() -> str | None:
    """Why GPU state cannot be saved here. Without the driver's control device nothing is asked."""
    if not Path("/dev/nvidiactl").exists():
        return "no NVIDIA driver on this machine"
    from perdure.checkpoint.host import gpu
    from perdure.checkpoint.preflight import gpu_machine
    from perdure.model.finding import problems

    found = problems(gpu_machine.judge(gpu.look()))
    return f"{found[0].code}: {found[0].message}" if found else None if os.geteuid() == 0 else "needs root"


def _closed_to_users() -> str | None:
    """Tell what keeps ordinary users, as whom tests run the command line, from its modules; None: nothing."""
    closed = [folder for folder in (ROOT / "src" / "perdure").parents if not folder.stat().st_mode & 0o001]
    return f"ordinary users cannot reach the checkout: {closed[-1]} is closed to them" if closed else None


# What a marked test needs: how to tell that it is there.
_NEEDS: dict[str, Callable[[], str | None]] = {
    "criu": _lack_of_criu,
    "chromium": lambda: None if shutil.which("chromium") or shutil.which("google-chrome") else "no Chromium on this machine",
    "s3": s3server.missing,
    "slurm": lambda: (
        None
        if os.geteuid() == 0 and all(shutil.which(name) for name in ("slurmdbd", "sacct", "sacctmgr", "mariadbd"))
        else "needs root, slurmdbd, sacct, sacctmgr and mariadbd"
    ),
    "cluster": lambda: rootfs.lack(shape.DEFAULT_VERSION),
    "gpu": _lack_of_gpu,
    "postgres": lambda: (
        None if shutil.which("initdb") or list(Path("/usr/lib/postgresql").glob("*/bin/initdb")) else "no PostgreSQL server on this machine"
    ),
    "users": _closed_to_users,
    "shared": lambda: None if SHARED.is_dir() else f"no test inputs at {SHARED}",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slurm", default="24.11", choices=sorted(rootfs.SUITES), help="version of Slurm of the test cluster")
    parser.addoption("--require", default="", metavar="WHAT,…", help=f"fail instead of skipping tests that need: {', '.join(_NEEDS)}")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    required = {name for name in config.getoption("--require").split(",") if name}
    unknown = required - set(_NEEDS)
    if unknown:
        raise pytest.UsageError(f"--require: unknown: {', '.join(sorted(unknown))}")
    for name, find_lack in _NEEDS.items():
        lack = find_lack()
        if lack is None:
            continue
        for item in items:
            if item.get_closest_marker(name):
                item.add_marker(
                    pytest.mark.required_but_missing(f"--require={name}: {lack}") if name in required else pytest.mark.skip(reason=lack)
                )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "gpu: needs root and an NVIDIA GPU whose state can be saved; run by `make test-gpu`")
    shape.DEFAULT_VERSION = config.getoption("--slurm")
    config.addinivalue_line("markers", "required_but_missing(reason): set by --require; the test fails")
    # The suite must not depend on the configuration of whoever runs it.
    for variable in [key for key in os.environ if key.startswith("PERDURE_")]:
        del os.environ[variable]


def pytest_runtest_setup(item: pytest.Item) -> None:
    marker = item.get_closest_marker("required_but_missing")
    if marker:
        pytest.fail(marker.args[0], pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show what the cluster of a test that failed has to say of it."""
    report = yield
    if report.failed and report.when == "call":
        report.sections += [("what the test cluster told", cluster.told()) for cluster in slurm.ALIVE]
    return report


@pytest.fixture
def shared() -> Path:
    """The folder of shared test inputs; the test carries the mark `shared`."""
    return SHARED


@pytest.fixture
def perdure(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the real command line as a process, in an empty working directory with a bare environment."""

    def run(*arguments: str | os.PathLike[str], env: dict[str, str] | None = None, **options) -> subprocess.CompletedProcess[str]:
        environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "LC_ALL": "C.UTF-8", "PYTHONPATH": str(ROOT / "src")}
        options.setdefault("cwd", tmp_path)
        options.setdefault("timeout", 300)
        return subprocess.run(
            [sys.executable, "-m", "perdure", *map(str, arguments)],
            capture_output=True,
            text=True,
            env=environment | (env or {}),
            **options,
        )

    return run


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A real PostgreSQL; a module of its own, since tests stop it and start it again."""
    running = Server()
    try:
        running.start()
        yield running
    finally:
        running.remove()


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a ledger that does not exist yet, on each backend."""
    if request.param == "sqlite":
        return str(tmp_path / "effects.db")
    server: Server = request.getfixturevalue("server")
    return server.empty()


@pytest.fixture(scope="session")
def object_store() -> Iterator[s3server.S3Server]:
    """A real object store, for the whole run: each test makes a bucket of its own, and carries the mark `s3`."""
    running = s3server.S3Server()
    try:
        running.start()
        yield running
    finally:
        running.remove()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[supervised.Site]:
    """One machine's worth of state, for real workloads under the real command line."""
    made = supervised.Site(tmp_path)
    yield made
    made.close()
