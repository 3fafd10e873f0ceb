"""In and out: what an installation makes on a node is what it listed, and what is taken out leaves the node as it was, cut off wherever."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import dying
import island
import msgspec
import pytest
from island import STORE

from perdure import errors
from perdure.base.proc import process
from perdure.slurm import checks, install, manifest, payload, policy, uninstall
from perdure.slurm.site import Site

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.criu,
    pytest.mark.skipif(island.missing() is not None, reason=str(island.missing())),
]

ROOT = Path(__file__).resolve().parents[2]
SITE = Site(store=STORE)
PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"
ROOMS = ("cli/app", "supervisor/start", "supervisor/saver", "agent/seat", "store/repository")


def _small(folder: Path, text: str = "") -> payload.Payload:
    """A payload of a few files, which looks to an installation like the real one: it can be imported and started."""
    contents = {f"perdure/{room}.py": text for room in ROOMS} | {
        "perdure/__init__.py": text,
        "perdure/__main__.py": "def main():\n    return 0\n",
    }
    items, sources = [], {}
    for name, content in contents.items():
        source = folder / name.replace("/", "-")
        source.write_text(content)
        path = f"lib/{PYTHON}/site-packages/{name}"
        items.append(payload.Item(path, 0o644, len(content), hashlib.sha256(content.encode()).hexdigest()))
        sources[path] = str(source)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return payload.Payload(payload.FORMAT, "1.0", version, platform.machine(), SITE.prefix, tuple(items), sources)


def _node(found: payload.Payload) -> checks.Node:
    node, findings = checks.look(SITE, found, trying=True)
    assert {finding.code for finding in findings if finding.severity == "problem"} <= {"slurm-criu"}, "a small payload has none"
    return node


def _perdure(*words: str, **options) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "HOME": "/root", "LC_ALL": "C.UTF-8", "PYTHONPATH": str(ROOT / "src")}
    return subprocess.run(
        [sys.executable, "-m", "perdure", *words], env=environment, capture_output=True, text=True, timeout=300, cwd="/", **options
    )


def _installed(*words: str) -> subprocess.CompletedProcess[str]:
    """Run the command as it is installed, with nothing of the environment of tests."""
    return subprocess.run(
        ["/usr/local/bin/perdure", *words],
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
        capture_output=True,
        text=True,
        timeout=300,
        cwd="/",
    )


def _in_and_out(packed: Path) -> None:
    before = island.snapshot()
    words = ("slurm", "install", "--here", "--store", STORE, "--payload", str(packed))
    planned = _perdure(*words, "--dry-run", "--json")
    assert planned.returncode == 0, planned.stderr
    assert island.difference(before, island.snapshot()) == {}

    done = _perdure(*words)
    assert done.returncode == 0, done.stderr
    listed = json.loads(Path(manifest.PATH).read_text())
    assert listed["entries"] == json.loads(planned.stdout)["entries"], "a dry run prints exactly the manifest"
    assert listed["state"] == "whole"

    # What is there is what is listed, and what is listed is there.
    made = island.difference(before, island.snapshot())
    known = {entry["path"] for entry in listed["entries"]}
    caches = tuple(entry["path"] + "/" for entry in listed["entries"] if entry["kind"] == "cache")
    surprises = [path for path in made if path.removesuffix("/.") not in {*known, manifest.PATH} and not path.startswith(caches)]
    assert surprises == []
    assert all(os.path.lexists(entry["path"]) for entry in listed["entries"] if entry["kind"] in ("file", "link", "folder", "store"))

    # It works with nothing else, for others than root too, and opts nobody in.
    assert _installed("--version").stdout.startswith("perdure ")
    assert "nobody is opted in" in _installed("slurm", "policy").stderr
    assert Path(policy.SHIM_FILE).read_bytes() == b"perdure-shim 1\nend 0\n"
    assert Path("/etc/slurm/plugstack.conf").read_text() == "optional /opt/perdure/lib/slurm/perdure_spank.so\n"
    assert Path("/opt/perdure/lib/slurm/perdure_spank.so").read_bytes()[:4] == b"\x7fELF"

    # Again: nothing changes. Damage is mended.
    again = json.loads(_perdure(*words, "--json").stdout)
    assert (again["state"], again["changed"]) == ("unchanged", 0)
    program = Path(os.path.realpath("/opt/perdure/bin/perdure"))
    program.unlink()
    mended = json.loads(_perdure(*words, "--json").stdout)
    assert (mended["state"], mended["changed"]) == ("mended", 1)

    removed = _installed("slurm", "uninstall", "--here", "--json")
    assert json.loads(removed.stdout)["state"] == "removed", removed.stderr
    assert island.difference(before, island.snapshot()) == {}


@pytest.fixture(scope="module")
def packed(tmp_path_factory) -> Path:
    """All of Perdure, as nodes get it."""
    path = tmp_path_factory.mktemp("payload") / "payload.tar"
    done = _perdure("slurm", "payload", "-o", str(path), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["shims"], "there are headers and a compiler here"
    return path


def test_what_goes_in_is_what_was_printed_and_what_comes_out_is_all_of_it(tmp_path, packed):
    (tmp_path / "island").mkdir()
    island.visit(lambda: _in_and_out(packed), tmp_path / "island")


def _shim_alone(packed: Path) -> None:
    Path("/etc/slurm/plugstack.conf").write_text("# the site's own\n")
    before = island.snapshot()
    words = ("slurm", "install", "--here", "--shim-only", "--payload", str(packed))
    done = _perdure(*words, "--json")
    assert done.returncode == 0, done.stderr
    made = {path for path in island.difference(before, island.snapshot()) if not path.endswith("/.")}
    folders = {"/opt/perdure", "/opt/perdure/lib", "/opt/perdure/lib/slurm", "/var/lib/perdure"}
    files = {"/opt/perdure/lib/slurm/perdure_spank.so", "/opt/perdure/lib/slurm/perdure-task", "/etc/slurm/plugstack.conf", manifest.PATH}
    assert made == folders | files
    assert json.loads(_perdure(*words, "--json").stdout)["state"] == "unchanged"
    both = _perdure(*words, "--store", STORE)
    assert (both.returncode, "do not take part" in both.stderr) == (errors.UsageError.exit_status, True)

    # It becomes a node that takes part, and a node that does is not made one that does not.
    assert json.loads(_perdure(*words[:3], *words[4:], "--store", STORE, "--json").stdout)["state"] == "renewed"
    refused = _perdure(*words)
    assert (refused.returncode, "take it out first" in refused.stderr) == (errors.UsageError.exit_status, True)
    assert json.loads(_installed("slurm", "uninstall", "--here", "--json").stdout)["state"] == "removed"
    assert island.difference(before, island.snapshot()) == {}

    # Perdure's own command is not there; whoever takes it out brings it.
    assert _perdure(*words).returncode == 0
    assert json.loads(_perdure("slurm", "uninstall", "--here", "--purge-checkpoints", "--json").stdout)["state"] == "removed"
    assert island.difference(before, island.snapshot()) == {}


def test_the_shim_alone_goes_in_and_comes_out_and_may_become_all_of_it(tmp_path, packed):
    (tmp_path / "island").mkdir()
    island.visit(lambda: _shim_alone(packed), tmp_path / "island")


def test_a_line_that_is_there_already_is_left_to_whoever_put_it_there(tmp_path):
    small = _small(tmp_path)
    scratch = tmp_path / "island"
    scratch.mkdir()

    def work() -> None:
        line = checks.line(SITE.prefix)
        for shared in (Path("/etc/slurm/plugstack.conf"), Path("/etc/slurm/plugstack.conf.d/zzz-perdure.conf")):
            Path("/etc/slurm/plugstack.conf.d").mkdir(exist_ok=True)
            Path("/etc/slurm/plugstack.conf").write_text("include plugstack.conf.d/*\n")
            shared.write_text(shared.read_text() + line if shared.exists() else line)
            before = island.snapshot()
            install.place(SITE, small, _node(small))
            assert manifest.read().find(str(shared)) is None
            uninstall.uninstall(purge=False, wait=False)
            assert island.difference(before, island.snapshot()) == {}
            shared.unlink()

    island.visit(work, scratch)


def test_a_node_that_fetches_its_configuration_needs_the_line_from_the_controller(tmp_path):
    small = _small(tmp_path)
    scratch = tmp_path / "island"
    scratch.mkdir()

    def work() -> None:
        fetched = Path("/run/slurm/conf")
        fetched.mkdir(parents=True)
        shutil.move("/etc/slurm/slurm.conf", fetched / "slurm.conf")
        _, findings = checks.look(SITE, small, trying=True)
        assert "slurm-configless" in {finding.code for finding in findings}
        (fetched / "plugstack.conf").write_text(f"# the controller's\n{checks.line(SITE.prefix)}")
        before = island.snapshot()
        install.place(SITE, small, _node(small))
        assert Path("/opt/perdure/lib/slurm/perdure_spank.so").is_file()
        uninstall.uninstall(purge=False, wait=False)
        assert island.difference(before, island.snapshot()) == {}

    island.visit(work, scratch)


def test_an_installation_that_is_cut_off_anywhere_can_be_taken_out_or_completed(tmp_path):
    small = _small(tmp_path)
    scratch = tmp_path / "island"
    scratch.mkdir()

    def work() -> None:
        Path("/etc/slurm/plugstack.conf").write_text("# the site's own\nrequired other.so")
        node = _node(small)
        before = island.snapshot()
        steps = 0
        for step in dying.crashes(lambda: install.place(SITE, small, node), lambda: None, every=2):
            steps += 1
            if steps % 8 == 0:
                assert install.place(SITE, small, node).state in ("installed", "mended", "unchanged")
                assert manifest.read().state == "whole"
            uninstall.uninstall(purge=False, wait=False)
            assert island.difference(before, island.snapshot()) == {}, f"cut off at step {step}"
        assert steps > 50

    island.visit(work, scratch)


def test_an_uninstallation_that_is_cut_off_anywhere_is_completed_by_another(tmp_path):
    small = _small(tmp_path)
    scratch = tmp_path / "island"
    scratch.mkdir()

    def work() -> None:
        Path("/etc/slurm/plugstack.conf").write_text("# the site's own\n")
        node = _node(small)
        before = island.snapshot()
        install.place(SITE, small, node)
        made = {path: Path(path) for path in sorted(island.difference(before, island.snapshot())) if not path.endswith("/.")}
        kept = {
            path: (os.lstat(path).st_mode, os.readlink(path) if place.is_symlink() else place.read_bytes() if place.is_file() else None)
            for path, place in made.items()
        }
        uninstall.uninstall(purge=False, wait=False)
        for step in dying.crashes(lambda: uninstall.uninstall(purge=False, wait=False), lambda: _put_back(kept), every=2):
            uninstall.uninstall(purge=False, wait=False)
            assert island.difference(before, island.snapshot()) == {}, f"cut off at step {step}"

    island.visit(work, scratch)


def _put_back(kept: dict[str, tuple[int, str | bytes | None]]) -> None:
    """Make the paths of `kept` as they were: a mode, and where a link leads, what a file holds, or nothing for a folder."""
    for path, (mode, content) in kept.items():
        if isinstance(content, str):
            os.symlink(content, path)
        elif content is None:
            os.mkdir(path)
            os.chmod(path, mode & 0o7777)
        else:
            Path(path).write_bytes(content)
            os.chmod(path, mode & 0o7777)


def test_what_jobs_run_from_stays_until_the_last_of_them_has_ended(tmp_path):
    small = _small(tmp_path)
    scratch = tmp_path / "island"
    scratch.mkdir()

    def work() -> None:
        before = island.snapshot()
        placed = install.place(SITE, small, _node(small))
        folder = manifest.folder_of_prefix(SITE.prefix, placed.plan.id)
        with _job(folder) as first, _job(folder) as second:
            # What jobs leave: state, and a store with something in it.
            Path("/run/perdure/users/2001/live").mkdir(parents=True)
            Path(f"{manifest.FOLDER}/users/2001").mkdir(parents=True)
            Path(f"{manifest.FOLDER}/users/2001/state.db").write_text("state")
            Path("/run/criu.kdat").write_text("notes")
            removed = uninstall.uninstall(purge=False, wait=False)
            assert (removed.state, set(removed.waiting_for)) == ("leaving", {first.pid, second.pid})
            assert not os.path.lexists("/opt/perdure/bin/perdure")
            assert not os.path.lexists("/etc/slurm/plugstack.conf")
            assert os.path.isfile(f"{folder}/bin/perdure")
            assert manifest.read().state == "leaving"
            _end(first)
            # Another one who uninstalls is told the same, and one who installs again has it all back.
            assert uninstall.uninstall(purge=False, wait=False).waiting_for == (second.pid,)
            assert install.place(SITE, small, _node(small)).state == "mended"
            assert os.path.isfile("/opt/perdure/bin/perdure")
            assert uninstall.uninstall(purge=False, wait=False).state == "leaving"
            _end(second)
        _wait_until(lambda: not os.path.lexists(manifest.FOLDER) and _is_quiet())
        assert island.difference(before, island.snapshot()) == {}

    island.visit(work, scratch)


def test_a_new_version_leaves_the_one_before_to_the_jobs_that_run_from_it(tmp_path):
    old, new = _small(tmp_path), None
    (tmp_path / "new").mkdir()
    new = _small(tmp_path / "new", "# newer\n")
    scratch = tmp_path / "island"
    scratch.mkdir()

    def work() -> None:
        before = island.snapshot()
        node = _node(old)
        first = manifest.folder_of_prefix(SITE.prefix, install.place(SITE, old, node).plan.id)
        with _job(first) as job:
            renewed = install.place(SITE, new, node)
            second = manifest.folder_of_prefix(SITE.prefix, renewed.plan.id)
            assert (renewed.state, first != second) == ("renewed", True)
            assert os.path.realpath("/opt/perdure/bin/perdure") == f"{second}/bin/perdure"
            assert os.path.isfile(f"{first}/bin/perdure"), "a job runs from it"
            _end(job)
        _wait_until(lambda: not os.path.lexists(first))
        _wait_until(lambda: manifest.read().stale == () and _is_quiet())
        assert os.path.isfile(f"{second}/bin/perdure")
        uninstall.uninstall(purge=False, wait=True)
        assert island.difference(before, island.snapshot()) == {}

    island.visit(work, scratch)


def test_what_others_have_there_is_never_written_over(tmp_path):
    small = _small(tmp_path)
    scratch = tmp_path / "island"
    scratch.mkdir()

    def work() -> None:
        os.makedirs("/etc/perdure")
        Path("/etc/perdure/config.toml").write_text('store = "/elsewhere"\n')
        Path("/etc/perdure/slurm.toml").write_text('[opt-in]\nusers = ["alice"]\n')
        os.symlink("/bin/true", "/usr/local/bin/perdure")
        Path("/etc/slurm/plugstack.conf").write_text("required site.so")
        before = island.snapshot()
        node = _node(small)
        with pytest.raises(install.Unfit) as caught:
            install.place(SITE, small, node)
        assert "/etc/perdure/config.toml" in str(caught.value)
        assert "--replace" in caught.value.hint
        assert island.difference(before, island.snapshot()) == {}

        # With --replace it is put aside. The admin's policy is taken as it is, another's command stays, a line is added to another's list.
        install.place(msgspec.structs.replace(SITE, replace=True), small, node)
        assert Path("/etc/perdure/config.toml.perdure-old").read_text() == 'store = "/elsewhere"\n'
        assert Path("/etc/perdure/config.toml").read_bytes() == SITE.config()
        assert policy.parse_shim(Path(policy.SHIM_FILE).read_bytes()).opt_in.users == ("alice",)
        assert os.readlink("/usr/local/bin/perdure") == "/bin/true"
        assert Path("/etc/slurm/plugstack.conf").read_text().splitlines()[0] == "required site.so"
        assert len(Path("/etc/slurm/plugstack.conf").read_text().splitlines()) == 2

        # The policy was changed and put into force since: the shim's file goes all the same, the policy is not ours.
        Path("/etc/perdure/slurm.toml").write_text("")
        assert policy.apply(policy.load(trusted=True)) is True
        Path("/etc/perdure/slurm.toml").write_text('[opt-in]\nusers = ["alice"]\n')
        uninstall.uninstall(purge=False, wait=False)
        assert island.difference(before, island.snapshot()) == {}

    island.visit(work, scratch)


def test_a_configuration_that_the_admin_changed_is_kept_aside(tmp_path):
    small = _small(tmp_path)
    scratch = tmp_path / "island"
    scratch.mkdir()

    def work() -> None:
        before = island.snapshot()
        node = _node(small)
        install.place(SITE, small, node)
        Path("/etc/perdure/slurm.toml").write_text('[never]\nusers = ["bob"]\n')
        assert install.place(SITE, small, node).state == "mended", "the shim's file follows the policy"
        assert policy.parse_shim(Path(policy.SHIM_FILE).read_bytes()).never.users == ("bob",)
        removed = uninstall.uninstall(purge=False, wait=False)
        assert [note for note in removed.notes if "slurm.toml was changed" in note]
        left = {path.removesuffix("/.") for path in island.difference(before, island.snapshot())}
        assert left == {"/etc/perdure", "/etc/perdure/slurm.toml.perdure-kept"}

    island.visit(work, scratch)


def test_what_does_not_run_there_is_taken_back(tmp_path):
    broken = _small(tmp_path, "raise SystemExit('no')\n")
    scratch = tmp_path / "island"
    scratch.mkdir()

    def work() -> None:
        before = island.snapshot()
        node = _node(broken)
        with pytest.raises(errors.EnvironmentUnfit):
            install.place(SITE, broken, node)
        assert island.difference(before, island.snapshot()) == {}
        (scratch / "whole").mkdir()
        whole = _small(scratch / "whole")
        install.place(SITE, whole, node)
        installed = island.snapshot()
        with pytest.raises(errors.EnvironmentUnfit):
            install.place(SITE, broken, node)
        assert island.difference(installed, island.snapshot()) == {}, "the version before is in force"
        uninstall.uninstall(purge=False, wait=False)
        assert island.difference(before, island.snapshot()) == {}

    island.visit(work, scratch)


def test_several_nodes_fail_each_for_itself_and_are_named(tmp_path, packed):
    scratch = tmp_path / "island"
    scratch.mkdir()

    def work() -> None:
        before = island.snapshot()
        # Three names for one machine, of which one does not answer.
        how = """sh -c 'if [ {node} = n2 ]; then echo "no route to {node}" >&2; exit 255; fi; exec "$@"' x"""
        words = ("--runner", how, "--payload", str(packed))
        wrong = _perdure("slurm", "install", "--node-list", "n2,n1", "--store", STORE, *words, "--json")
        assert (wrong.returncode, json.loads(wrong.stdout)["untouched"]) == (4, ["n1"])
        assert island.difference(before, island.snapshot()) == {}, "the first one failed: no other was touched"

        done = _perdure("slurm", "install", "--node-list", "n[1-2]", "--store", STORE, *words, "--json")
        assert done.returncode == 3, done.stderr
        assert "failed on n2" in done.stderr
        results = {result["node"]: result for result in json.loads(done.stdout)["nodes"]}
        assert results["n1"]["outcome"]["state"] == "installed"
        assert results["n2"]["error"] == "no route to n2"
        assert _installed("--version").returncode == 0

        # What is damaged beyond starting is taken out by what is sent.
        os.unlink("/opt/perdure/bin/perdure")
        gone = _perdure("slurm", "uninstall", "--node-list", "n1", *words, "--json")
        assert json.loads(gone.stdout)["nodes"][0]["outcome"]["state"] == "removed", gone.stderr
        assert island.difference(before, island.snapshot()) == {}

    island.visit(work, scratch)


@contextlib.contextmanager
def _job(folder: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that runs from an installation, as a seat does."""
    program = "import sys; print(flush=True); sys.stdin.read()"
    job = subprocess.Popen([f"{folder}/bin/python3", "-I", "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    job.stdout.readline()
    try:
        yield job
    finally:
        _end(job)


def _end(job: subprocess.Popen[bytes]) -> None:
    job.communicate()


def _is_quiet() -> bool:
    """Tell whether all who wait and remove in the background have ended: they are at it a moment longer than is seen of it."""
    try:
        return all(process.stat(int(name)).is_dead for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid())
    except errors.ProcessGone:
        return False


def _wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.05)
