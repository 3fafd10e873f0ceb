"""`perdure run`, killed in every way, and run again: the log is byte for byte that of a run that nothing disturbed."""

from __future__ import annotations

import json
import signal
import socket
import struct
import subprocess

import pytest
from supervised import LIMIT_S, descendants, is_zombie, lines, wait_for

from perdure.supervisor import place

pytestmark = pytest.mark.criu


MANY = 4000
"""Lines, one every 50 ms: more than any checkpoint takes, until `Site.hurry`."""


def count(number: int, pause_s: float = 0.05, status: int = 0) -> list[str]:
    return ["--", "python3", "count.py", str(number), str(pause_s), str(status)]


def test_kill_9_of_everything_and_the_same_command_again(site):
    run = ["run", "--name", "a", "--every", "1s", *count(MANY)]
    first = site.start(*run)
    wait_for(lambda: site.manifests("a") and len(site.log("a").splitlines()) > 40)
    wait_for(lambda: len(site.log("a").splitlines()) > 45)
    site.kill_all(first)
    assert site.ps("a")["state"] == "lost"
    site.hurry()
    again = site.run(*run)
    assert again.returncode == 0, again.stderr.decode()
    assert b"goes on from a@1." in again.stderr
    assert site.log("a") == lines(MANY)
    assert lines(MANY).endswith(again.stdout)
    assert len(again.stdout) < len(lines(MANY))


def test_kill_9_of_the_supervisor_alone_takes_the_tree_with_it(site):
    run = ["run", "--name", "a", "--every", "1s", *count(MANY)]
    first = site.start(*run)
    wait_for(lambda: site.manifests("a"))
    below = descendants(first.pid)
    first.kill()
    first.wait()
    for pid in below:
        wait_for(lambda pid=pid: is_zombie(pid))
    site.hurry()
    assert site.run(*run).returncode == 0
    assert site.log("a") == lines(MANY)


# Says nothing of using its port again, as Open MPI's launcher does not.
SERVE = """
import os, socket
server = socket.socket()
server.bind(("127.0.0.1", 0))
server.listen()
print(server.getsockname()[1], flush=True)
kept = []
while not os.path.exists("hurry"):
    kept.append(server.accept()[0])
    print("accepted", flush=True)
"""


def test_a_port_that_is_kept_for_connections_of_the_life_before_is_waited_for(site, tmp_path):
    run = ["run", "--name", "a", "--every", "never", "--", "python3", "-c", SERVE]
    first = site.start(*run)
    wait_for(lambda: site.log("a"))
    port = int(site.log("a"))
    assert site.run("checkpoint", "a").returncode == 0
    with socket.create_connection(("127.0.0.1", port)) as client:
        wait_for(lambda: b"accepted" in site.log("a"))
        site.kill_all(first)
        with open(tmp_path / "said", "wb") as said:
            again = site.start(*run, stderr=said)
        # It may have taken so long to come there that nothing is kept any more.
        words = (b"waiting for 127.0.0.1:%d: " % port, b"goes on from")
        wait_for(lambda: again.poll() is not None or any(word in (tmp_path / "said").read_bytes() for word in words))
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    wait_for(lambda: again.poll() is not None or b"goes on from" in (tmp_path / "said").read_bytes())
    assert again.poll() is None, (tmp_path / "said").read_text()
    site.hurry()
    socket.create_connection(("127.0.0.1", port)).close()
    assert again.wait(LIMIT_S) == 0
    assert site.log("a") == b"%d\naccepted\n" % port


def test_three_lives_in_a_row(site):
    run = ["run", "--name", "a", "--every", "1s", *count(MANY)]
    for life in range(1, 4):
        process = site.start(*run)
        wait_for(lambda life=life: any(name.startswith(f"{life:08d}.") for name in site.manifests("a")))
        site.kill_all(process)
    site.hurry()
    done = site.run(*run)
    assert done.returncode == 0, done.stderr.decode()
    assert site.log("a") == lines(MANY)
    assert site.ps("a")["epoch"] == 4


def test_sigterm_saves_and_ends_with_75_and_the_next_run_continues(site):
    run = ["run", "--name", "a", "--every", "never", *count(MANY)]
    first = site.start(*run)
    wait_for(lambda: len(site.log("a").splitlines()) > 20)
    first.send_signal(signal.SIGTERM)
    out, err = first.communicate(timeout=LIMIT_S)
    assert first.returncode == 75, err.decode()
    assert site.manifests("a") == ["00000001.00000001"]
    assert site.ps("a")["state"] == "stopped"
    site.hurry()
    again = site.run(*run)
    assert again.returncode == 0, again.stderr.decode()
    assert site.log("a") == lines(MANY)
    # Stopped with the checkpoint: what the two lives wrote is the whole, with nothing twice.
    assert out + again.stdout == lines(MANY)


def test_output_to_a_file_is_that_of_an_undisturbed_run(site):
    run = ["run", "--name", "a", "--every", "1s", *count(MANY)]
    path = site.folder / "out.txt"
    with open(path, "wb") as target:
        first = site.start(*run, stdout=target)
    wait_for(lambda: site.manifests("a") and len(path.read_bytes().splitlines()) > 30)
    site.kill_all(first)
    site.hurry()
    with open(path, "wb") as target:
        assert site.run(*run, stdout=target).returncode == 0
    assert path.read_bytes() == lines(MANY)


def test_output_appended_to_a_file_is_too(site):
    run = ["run", "--name", "a", "--every", "1s", "--", "sh", "-c", "python3 count.py 4000 0.05; echo done >&2"]
    out, err = site.folder / "out.txt", site.folder / "err.txt"
    out.write_bytes(b"before\n")
    for last in (False, True):
        with open(out, "ab") as target, open(err, "ab") as second:
            process = site.start(*run, stdout=target, stderr=second)
        if not last:
            wait_for(lambda: site.manifests("a") and len(out.read_bytes().splitlines()) > 35)
            site.kill_all(process)
            site.hurry()
    assert process.wait(LIMIT_S) == 0
    assert out.read_bytes() == b"before\n" + lines(MANY)
    assert err.read_bytes().endswith(b"done\n")


def test_the_exit_status_is_passed_on_and_an_ended_workload_starts_anew(site):
    run = ["run", "--name", "a", "--every", "1s", *count(40, 0.05, 3)]
    for epoch in (1, 2):
        done = site.run(*run)
        assert done.returncode == 3
        assert done.stdout == lines(40)
        found = site.ps("a")
        assert (found["state"], found["epoch"]) == ("failed", epoch)
    assert b"starting it anew" in done.stderr


def test_fresh_starts_over(site):
    run = ["run", "--name", "a", "--every", "never"]
    first = site.start(*run, *count(1000))
    wait_for(lambda: len(site.log("a").splitlines()) > 5)
    first.send_signal(signal.SIGTERM)
    first.communicate(timeout=LIMIT_S)
    other = site.run(*run, *count(10))
    assert other.returncode == 2
    assert b"a is another command" in other.stderr
    fresh = site.run(*run, "--fresh", *count(10))
    assert (fresh.returncode, fresh.stdout) == (0, lines(10))
    assert site.log("a") == lines(10)


def test_output_files_come_back_to_the_checkpoint(site):
    (site.work / "write.py").write_text(
        "import os, time\n"
        "with open('results.txt', 'a') as handle:\n"
        "    for number in range(4000):\n"
        "        print('line', number, file=handle, flush=True)\n"
        "        if not os.path.exists('hurry'): time.sleep(0.05)\n"
    )
    run = ["run", "--name", "a", "--every", "1s", "--", "python3", "write.py"]
    first = site.start(*run)
    results = site.work / "results.txt"
    wait_for(lambda: site.manifests("a") and results.exists() and len(results.read_bytes().splitlines()) > 40)
    site.kill_all(first)
    site.hurry()
    again = site.run(*run)
    assert again.returncode == 0, again.stderr.decode()
    assert results.read_bytes() == lines(MANY)


def test_a_damaged_newest_checkpoint_is_passed_over_and_said(site):
    run = ["run", "--name", "a", "--every", "1s", *count(MANY)]
    first = site.start(*run)
    wait_for(lambda: len(site.manifests("a")) >= 2)
    site.kill_all(first)
    newest = site.state / "store/workloads/a/manifests" / site.manifests("a")[-1]
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes(content)
    site.hurry()
    again = site.run(*run)
    assert again.returncode == 0, again.stderr.decode()
    assert b"cannot be used" in again.stderr or b"is damaged" in again.stderr
    assert b"goes on from a@1." in again.stderr
    assert site.log("a") == lines(MANY)


LARGE = """
import os, random, sys, time
held = bytearray(os.urandom(24 << 20))
for number in range(int(sys.argv[1])):
    held[(number % 24) << 20 : (number % 24 + 1) << 20] = os.urandom(1 << 20)
    print("line", number, flush=True)
    if not os.path.exists("hurry"):
        time.sleep(0.1)
"""


def damage_newest(site) -> tuple[str, str]:
    """Change one byte of the largest pack that only the newest checkpoint needs, nearly all of which is pages; it and the one before."""
    with place.opened(place.Place(str(site.state / "store"), None, str(site.folder / "cache"), 1)) as repository:
        *older, newest = repository.checkpoints("a")
        own = repository.packs_of(newest) - frozenset().union(*map(repository.packs_of, older))
        pack = max((site.state / "store" / key for key in own), key=lambda path: path.stat().st_size)
    content = bytearray(pack.read_bytes())
    content[len(content) // 3] ^= 1
    pack.chmod(0o600)
    pack.write_bytes(content)
    return str(newest), str(older[-1])


def test_memory_that_is_found_damaged_while_it_is_read_leads_to_the_checkpoint_before(site):
    (site.work / "large.py").write_text(LARGE)
    run = ["run", "--name", "a", "--every", "1s", "--", "python3", "large.py", "1000"]
    first = site.start(*run)
    wait_for(lambda: len(site.manifests("a")) >= 2)
    site.kill_all(first)
    newest, before = damage_newest(site)
    site.hurry()
    again = site.run(*run)
    assert again.returncode == 0, again.stderr.decode()
    assert f"{newest} is damaged".encode() in again.stderr
    assert f"goes on from {before}".encode() in again.stderr
    assert site.log("a") == lines(1000)


def test_no_later_checkpoint_leans_on_what_was_found_damaged(site):
    # The same memory comes about again after the restore: it lies in the store already, and damaged.
    (site.work / "large.py").write_text(LARGE.replace("os.urandom(1 << 20)", "random.Random(number).randbytes(1 << 20)"))
    run = ["run", "--name", "a", "--every", "1s", "--keep", "100", "--", "python3", "large.py", "1000"]
    first = site.start(*run)
    wait_for(lambda: len(site.manifests("a")) >= 2)
    site.kill_all(first)
    newest, before = damage_newest(site)
    second = site.start(*run)
    wait_for(lambda: len([name for name in site.manifests("a") if not name.startswith("00000001.")]) >= 3)
    site.kill_all(second)
    verified = site.run("store", "verify", "--json")
    assert verified.returncode == 13
    (found,) = json.loads(verified.stdout)["damages"]
    assert found["lost"] == [newest]
    assert before != newest


def test_a_second_run_of_one_name_is_refused(site):
    first = site.start("run", "--name", "a", *count(1000))
    wait_for(lambda: site.log("a"))
    second = site.run("run", "--name", "a", *count(1000))
    assert second.returncode == 11
    assert b"a is running already" in second.stderr
    assert first.poll() is None


def test_the_workload_reads_its_epoch_where_it_is_told(site):
    (site.work / "epoch.py").write_text(
        "import os, time\n"
        "assert os.environ['PERDURE_WORKLOAD'] == 'a'\n"
        "seen = []\n"
        "for _ in range(4000):\n"
        "    text = open(os.environ['PERDURE_EPOCH_FILE']).read().split()\n"
        "    if text not in seen: seen.append(text); print(*text, flush=True)\n"
        "    if not os.path.exists('hurry'): time.sleep(0.05)\n"
    )
    run = ["run", "--name", "a", "--every", "1s", "--", "python3", "epoch.py"]
    first = site.start(*run)
    wait_for(lambda: site.manifests("a"))
    site.kill_all(first)
    site.hurry()
    again = site.run(*run)
    assert (again.returncode, again.stdout) == (0, b"2 a\n"), again.stderr
    assert site.log("a") == b"1 a\n2 a\n"


def test_without_a_checkpoint_it_starts_anew(site):
    run = ["run", "--name", "a", "--every", "never", *count(MANY)]
    first = site.start(*run)
    wait_for(lambda: site.log("a"))
    site.kill_all(first)
    site.hurry()
    again = site.run(*run)
    assert (again.returncode, again.stdout) == (0, lines(MANY))
    assert site.log("a") == lines(MANY)


def test_stdin_pipe_is_pumped(site):
    done = site.start("run", "--name", "a", "--", "wc", "-c", stdin=subprocess.PIPE)
    out, err = done.communicate(b"x" * 300_000, timeout=LIMIT_S)
    assert (done.returncode, out.strip()) == (0, b"300000"), err
