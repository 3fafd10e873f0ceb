"""A writer killed with -9 at every write to a folder: the old checkpoint is whole, and of the new one there is all or nothing."""

import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from stores import new_repository, save

from perdure.model.checkpoint import CheckpointId
from perdure.store import layout
from perdure.store.backends.local import LocalBackend
from perdure.store.repository import Repository

CHILD = """
import os, signal, sys
from pathlib import Path
from stores import save
from perdure.store.backends.local import LocalBackend
from perdure.store.repository import Repository

folder, fatal, when = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]


class Fatal(LocalBackend):
    writes = 0

    def _fatally(self, write, key, content):
        Fatal.writes += 1
        last = Fatal.writes == fatal
        if last and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        write(key, content)
        if last:
            os.kill(os.getpid(), signal.SIGKILL)

    def put(self, key, content):
        self._fatally(super().put, key, content)

    def put_if_absent(self, key, content):
        self._fatally(super().put_if_absent, key, content)


repository = Repository.open(Fatal(folder / "store"), key=None, cache=folder / "cache", threads=2)
save(repository, "a@1.2", {"x": (folder / "new").read_bytes()}, folder=folder)
"""


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_kill_at_any_write_loses_nothing(when: str, tmp_path: Path) -> None:
    old, new = random.Random(1).randbytes(300_000), random.Random(2).randbytes(18 << 20)
    (tmp_path / "new").write_bytes(new)
    killed = 0
    while True:
        folder = tmp_path / str(killed)
        folder.mkdir()
        (folder / "new").symlink_to(tmp_path / "new")
        repository = new_repository(folder / "cache", backend=LocalBackend(folder / "store"))
        first = save(repository, "a@1.1", {"x": old}, folder=folder)
        ended = subprocess.run(
            [sys.executable, "-c", CHILD, str(folder), str(killed + 1), when], env={"PYTHONPATH": ":".join(sys.path)}, timeout=300
        )
        assert ended.returncode in (0, -signal.SIGKILL)
        again = Repository.open(LocalBackend(folder / "store"), key=None, cache=folder / "cache")
        assert again.read_file(first.id, "x") == old
        second = CheckpointId("a", 1, 2)
        # The manifest is the third write: two packs come before it.
        assert (second in again.checkpoints("a")) is (killed == 3 or (killed == 2 and when == "after"))
        if second not in again.checkpoints("a"):
            save(again, "a@1.2", {"x": new}, folder=folder)
        assert again.read_file(second, "x") == new
        for info in again.backend.list(""):
            assert layout.kind_of(info.key) is not None
            again.check_object(info.key)
        if ended.returncode == 0:
            break
        killed += 1
    assert killed == 3
