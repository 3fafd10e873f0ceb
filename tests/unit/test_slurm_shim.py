"""The shim's parts that need no Slurm, compiled here: whom it takes, what it reads, what it sends and hears."""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import subprocess

import pytest

from perdure.agent import replies, request
from perdure.agent.replies import Ended, Reply, Started
from perdure.slurm import compiling, policy
from perdure.slurm.policy import Names, Policy
from perdure.supervisor import wire

CC = compiling.compiler()
pytestmark = pytest.mark.skipif(CC is None, reason="needs a C compiler")

LOAD = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_uint32, ctypes.c_void_p)
NAME, WORDS = 256, 1024


class Record(ctypes.Structure):
    _fields_ = (
        ("partition", ctypes.c_char * NAME),
        ("qos", ctypes.c_char * NAME),
        ("account", ctypes.c_char * NAME),
        ("comment", ctypes.c_char * WORDS),
        ("nodes", ctypes.c_uint32),
        ("het_job_id", ctypes.c_uint32),
        ("in_container", ctypes.c_bool),
    )


class Task(ctypes.Structure):
    _fields_ = (
        ("job", ctypes.c_uint32),
        ("step", ctypes.c_uint32),
        ("nodes", ctypes.c_uint32),
        ("tasks", ctypes.c_uint32),
        ("is_first", ctypes.c_bool),
        ("is_part", ctypes.c_bool),
        ("in_container", ctypes.c_bool),
        ("uid", ctypes.c_uint32),
        ("gid", ctypes.c_uint32),
        ("groups", ctypes.c_void_p),
        ("group_count", ctypes.c_int),
        ("user", ctypes.c_char * NAME),
        ("wish", ctypes.c_char * WORDS),
    )


class ShimPolicy(ctypes.Structure):
    _fields_ = (
        ("is_there", ctypes.c_bool),
        ("needs_record", ctypes.c_bool),
        ("forbids_by_record", ctypes.c_bool),
        ("names_users", ctypes.c_bool),
        ("text", ctypes.c_void_p),
        ("size", ctypes.c_size_t),
        ("options", (ctypes.c_char * NAME) * 16),
        ("option_count", ctypes.c_int),
    )


class Decision(ctypes.Structure):
    _fields_ = (
        ("verdict", ctypes.c_int),
        ("by_itself", ctypes.c_bool),
        ("options", ctypes.c_char * WORDS),
        ("refusal", ctypes.c_char * NAME),
        ("is_unknown", ctypes.c_bool),
    )


class Answer(ctypes.Structure):
    _fields_ = (
        ("kind", ctypes.c_int),
        ("text", ctypes.c_char_p),
        ("code", ctypes.c_char_p),
        ("hint", ctypes.c_char_p),
        ("status", ctypes.c_int),
        ("is_error", ctypes.c_bool),
    )


class ManyWords(ctypes.Structure):
    _fields_ = (("items", ctypes.POINTER(ctypes.c_char_p)), ("count", ctypes.c_size_t))


@pytest.fixture(scope="module")
def shim(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shim")
    for name, content in compiling.sources().items():
        (folder / name).write_bytes(content)
    flags = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC"]
    parts = ["policy.c", "decide.c", "reply.c", "request.c"]
    done = subprocess.run([CC, *flags, "-o", "parts.so", *parts], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    library = ctypes.CDLL(str(folder / "parts.so"))
    library.policy_read.restype = ctypes.c_bool
    library.request_send.restype = ctypes.c_bool
    library.request_send.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_uint, ManyWords, ManyWords]
    library.reply_read.restype = Answer
    return library


class Site:
    """A policy in force, and a controller that knows one job."""

    def __init__(self, shim, folder, content=None):
        self.shim = shim
        self.path = folder / "slurm.shim"
        self.loads = 0
        self.policy = ShimPolicy()
        self.problem = ctypes.create_string_buffer(512)
        if content is not None:
            self.path.write_bytes(content)
            self.path.chmod(0o644)
        self.is_read = shim.policy_read(os.fsencode(self.path), ctypes.byref(self.policy), self.problem, 512)

    def decide(self, *, record=None, answers=True, **task):
        shown = Record(**({"partition": b"main", "qos": b"normal", "account": b"physics", "nodes": 1} | (record or {})))

        def load(_job, into):
            self.loads += 1
            if answers:
                ctypes.memmove(into, ctypes.byref(shown), ctypes.sizeof(shown))
            return answers

        asked = Task(**({"job": 7, "nodes": 1, "tasks": 1, "is_first": True, "uid": 2001, "user": b"alice"} | task))
        decision = Decision()
        self.loads = 0
        self.shim.decide(ctypes.byref(asked), ctypes.byref(self.policy), LOAD(load), ctypes.byref(decision))
        return decision


@pytest.fixture
def nobody(shim, tmp_path):
    return Site(shim, tmp_path)


def site_with(shim, folder, **names):
    return Site(shim, folder, policy.render(Policy(**names)))


def test_by_default_nobody_is_meant(nobody):
    decision = nobody.decide()
    assert (decision.verdict, decision.refusal, nobody.is_read) == (0, b"", True)


@pytest.mark.parametrize("wish", [b"1", b"yes", b"every=10m,keep=2", b"TRUE"])
def test_the_environment_opts_in_without_asking_the_controller(nobody, wish):
    decision = nobody.decide(wish=wish)
    assert (decision.verdict, decision.options, decision.by_itself, nobody.loads) == (1, wish, True, 0)


@pytest.mark.parametrize("wish", [b"0", b"never", b"No", b"off", b"false"])
def test_the_environment_opts_out_of_comment_and_policy(shim, tmp_path, wish):
    site = site_with(shim, tmp_path, opt_in=Names(partitions=("main",)))
    assert site.decide(wish=wish, record={"comment": b"perdure"}).verdict == 0
    assert site.loads == 0


@pytest.mark.parametrize(
    ("comment", "verdict", "options"),
    [
        (b"perdure", 1, b""),
        (b"perdure:every=10m,keep=2", 1, b"every=10m,keep=2"),
        (b"run 5; perdure:every=1h; of project x", 1, b"every=1h"),
        (b"  perdure  ", 1, b""),
        (b"perdure:never", 0, b""),
        (b"perdure:0", 0, b""),
        (b"perdures", 0, b""),
        (b"not-perdure", 0, b""),
        (b"PERDURE", 0, b""),
        (b"", 0, b""),
    ],
)
def test_the_comment_opts_in(nobody, comment, verdict, options):
    decision = nobody.decide(record={"comment": comment})
    assert decision.verdict == verdict
    assert decision.options == options or not verdict
    assert nobody.loads == 1


@pytest.mark.parametrize(
    "names", [{"partitions": ("main",)}, {"qos": ("NORMAL",)}, {"accounts": ("Physics",)}, {"users": ("alice",)}, {"users": ("2001",)}]
)
def test_the_policy_opts_in_by_each_name_and_never_excludes_by_it(shim, tmp_path, names):
    decision = site_with(shim, tmp_path, opt_in=Names(**names)).decide()
    assert (decision.verdict, decision.by_itself) == (1, False)
    excluded = site_with(shim, tmp_path, never=Names(**names)).decide(wish=b"1")
    assert (excluded.verdict, b"excludes" in excluded.refusal) == (0, True)
    silent = site_with(shim, tmp_path, opt_in=Names(**names), never=Names(**names)).decide()
    assert (silent.verdict, silent.refusal) == (0, b"")


@pytest.mark.parametrize(
    "names", [{"partitions": ("MAIN",)}, {"qos": ("norm",)}, {"users": ("alic",)}, {"users": ("200",)}, {"users": ("20010",)}]
)
def test_a_name_that_is_another_means_nobody(shim, tmp_path, names):
    assert site_with(shim, tmp_path, opt_in=Names(**names)).decide().verdict == 0


def test_a_user_whose_name_is_a_number_is_met_by_id_alone(shim, tmp_path):
    assert site_with(shim, tmp_path, opt_in=Names(users=("77",))).decide(user=b"77").verdict == 0


@pytest.mark.parametrize(
    ("names", "asks"),
    [
        ({}, False),
        ({"opt_in": Names(partitions=("main",))}, False),
        ({"opt_in": Names(users=("2001",))}, False),
        ({"opt_in": Names(users=("2001", "alice"))}, True),
        ({"never": Names(users=("bob",))}, True),
    ],
)
def test_a_users_name_is_looked_up_only_for_a_policy_that_names_users(shim, tmp_path, names, asks):
    assert site_with(shim, tmp_path, **names).policy.names_users is asks


def test_the_sites_options_come_along(shim, tmp_path):
    site = site_with(shim, tmp_path, opt_in=Names(users=("alice",)), options={"every": "10m", "keep": "3"})
    assert [site.policy.options[at].value for at in range(site.policy.option_count)] == [b"every=10m", b"keep=3"]


@pytest.mark.parametrize(
    ("task", "record", "why"),
    [
        ({"nodes": 2}, {}, b"more than one node"),
        ({"tasks": 4}, {}, b"more than one task"),
        ({}, {"nodes": 2, "comment": b"perdure"}, b"more than one node"),
        ({}, {"het_job_id": 9, "comment": b"perdure"}, b"heterogeneous"),
        ({"is_part": True}, {}, b"heterogeneous"),
        ({"in_container": True}, {}, b"in a container"),
        ({}, {"in_container": True, "comment": b"perdure"}, b"in a container"),
    ],
)
def test_what_cannot_be_saved_is_refused_with_the_reason(nobody, task, record, why):
    decision = nobody.decide(record=record, **({"wish": b"1"} if not record else {}), **task)
    assert decision.verdict == 0
    assert why in decision.refusal
    assert decision.refusal.endswith(b"unmanaged")


def test_only_the_first_task_of_a_step_speaks(nobody):
    decision = nobody.decide(wish=b"1", tasks=4, is_first=False)
    assert (decision.verdict, decision.refusal, nobody.loads) == (0, b"", 0)


def test_a_controller_that_is_away_leaves_jobs_alone(shim, tmp_path):
    site = site_with(shim, tmp_path, opt_in=Names(users=("alice",)))
    silent = site.decide(answers=False)
    assert (silent.verdict, silent.refusal, silent.is_unknown) == (0, b"", True)
    assert not site.decide(answers=False, wish=b"1").is_unknown
    guarded = site_with(shim, tmp_path, never=Names(partitions=("debug",)))
    decision = guarded.decide(answers=False, wish=b"1")
    assert (decision.verdict, b"does not say" in decision.refusal) == (0, True)


GOOD = policy.render(Policy(opt_in=Names(users=("alice",)), options={"every": "10m"}))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        GOOD[:-1],
        GOOD[:-8],
        GOOD + b"\n",
        GOOD.replace(b"shim 1", b"shim 2"),
        GOOD.replace(b"end 2", b"end 3"),
        GOOD.replace(b"user alice", b"user"),
        GOOD.replace(b"user alice", b"user "),
        GOOD.replace(b"user alice", b"uses alice"),
        GOOD.replace(b"user alice", b""),
        GOOD.replace(b"alice", b"al\0ce"),
        GOOD.replace(b"every=10m", b"every"),
        GOOD.replace(b"option every=10m", b"option " + b"x" * 300 + b"=1"),
        GOOD.replace(b"user alice\n", b"user alice\n" * 20000),
    ],
)
def test_a_file_that_is_not_whole_opts_nobody_in_and_is_told(shim, tmp_path, content):
    site = Site(shim, tmp_path, content)
    assert (site.is_read, site.policy.is_there) == (False, False)
    assert os.fsencode(site.path) in site.problem.value
    assert site.decide().verdict == 0


def test_a_file_that_others_can_change_opts_nobody_in(shim, tmp_path):
    path = tmp_path / "slurm.shim"
    path.write_bytes(GOOD)
    path.chmod(0o666)
    site = Site(shim, tmp_path)
    assert (site.is_read, site.decide().verdict) == (False, 0)
    path.chmod(0o644)
    assert Site(shim, tmp_path).decide().verdict == 1
    path.rename(tmp_path / "real")
    path.symlink_to("real")
    assert Site(shim, tmp_path).is_read is False


def test_the_request_is_the_one_that_the_seat_reads(shim, tmp_path):
    argv = [b"/bin/sh", b"-c", b"a b\xff", b""]
    environment = [b"PATH=/bin", b"EMPTY=", b"X=a=b\n"]
    ours, theirs = socket.socketpair()
    with ours, theirs:
        sent = shim.request_send(
            theirs.fileno(),
            b"/scratch",
            0o27,
            ManyWords((ctypes.c_char_p * 4)(*argv), 4),
            ManyWords((ctypes.c_char_p * 3)(*environment), 3),
        )
        assert sent
        found, descriptors = request.receive(ours, within_s=30.0)
    for number, descriptor in enumerate(descriptors):
        assert os.fstat(descriptor).st_ino == os.fstat(number).st_ino
        os.close(descriptor)
    assert (found.umask, found.working_directory, found.options) == (0o27, "/scratch", ())
    assert [os.fsencode(word) for word in found.argv] == argv
    assert found.environment == {"PATH": "/bin", "EMPTY": "", "X": "a=b\n"}


def test_a_request_that_is_too_large_is_not_sent(shim):
    huge = [b"x" * (5 << 20)]
    ours, theirs = socket.socketpair()
    with ours, theirs:
        words = ManyWords((ctypes.c_char_p * 1)(*huge), 1)
        assert not shim.request_send(theirs.fileno(), b"/", 0o22, words, ManyWords(None, 0))


# The seat is one that ends as the first argument says; what the task does then is printed.
TASK = r"""
#include "shim.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	extern char **environ;
	char *command[] = {"/bin/true", NULL};
	size_t variables = 0;
	int ends[2];
	struct seat seat;

	while (argc > 2 && environ[variables])
		variables++;
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends))
		return 99;
	seat.pid = fork();
	if (!seat.pid) {
		char bytes[65536];
		int number = atoi(argv[1] + 1);

		close(ends[0]);
		if (argv[2][0] == 'r') /* reads what it is asked for before */
			(void)!read(ends[1], bytes, sizeof bytes);
		if (argv[2][1] == 's')
			(void)!write(ends[1], "{\"started\":{}}\n", 15);
		if (argv[1][0] == 'k')
			kill(getpid(), number);
		if (argv[1][0] == 's') { /* says no more, and stays */
			close(ends[1]);
			close(1);
			close(2);
			sleep((unsigned)number);
		}
		_exit(number);
	}
	close(ends[1]);
	seat.channel = ends[0];
	if (argv[2][0] != 'r')
		waitid(P_PID, (id_t)seat.pid, &(siginfo_t){0}, WEXITED | WNOWAIT); /* it is gone before it is asked */
	printf("as ever: %s\n", task_hand_over(&seat, (struct words){command, 1}, (struct words){environ, variables}, true));
	return 0;
}
"""


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    folder = tmp_path_factory.mktemp("task")
    for name, content in compiling.sources().items():
        (folder / name).write_bytes(content)
    (folder / "harness.c").write_text(TASK)
    parts = ["harness.c", "task.c", "say.c", "reply.c", "request.c"]
    done = subprocess.run([CC, "-std=gnu11", "-Wall", "-O1", "-o", "task", *parts], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / "task"


@pytest.mark.parametrize("reads", ["r-", "--"], ids=["asked", "before it is asked"])
@pytest.mark.parametrize(
    ("how", "restarts", "status", "as_ever"),
    [
        pytest.param("k15", 0, 143, False, id="ended, first attempt"),
        pytest.param("k15", 2, 143, False, id="ended"),
        pytest.param("k9", 0, 0, True, id="killed, first attempt"),
        pytest.param("k9", 1, 1, False, id="killed"),
        pytest.param("e1", 0, 0, True, id="failed, first attempt"),
        pytest.param("e1", 1, 1, False, id="failed"),
        pytest.param("e127", 1, 0, True, id="no program"),
    ],
)
def test_a_seat_that_is_gone_before_it_began_starts_nothing_over(task, how, restarts, reads, status, as_ever):
    environment = {"SLURM_RESTART_COUNT": str(restarts)} if restarts else {}
    done = subprocess.run([task, how, reads], env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.startswith("as ever: ")) == (status, as_ever), done.stderr
    assert ("runs unmanaged" in done.stdout + done.stderr) == as_ever


@pytest.mark.parametrize(("restarts", "status", "as_ever"), [(0, 0, True), (1, 1, False)])
def test_a_seat_that_says_no_more_and_stays_starts_nothing_over(task, restarts, status, as_ever):
    environment = {"SLURM_RESTART_COUNT": str(restarts)} if restarts else {}
    done = subprocess.run([task, "s30", "r-"], env=environment, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout.startswith("as ever: ")) == (status, as_ever), done.stderr


def test_a_seat_that_is_gone_after_it_began_ends_the_task(task):
    done = subprocess.run([task, "k9", "rs"], env={}, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (1, "")
    assert "the workload with it" in done.stderr


@pytest.fixture(scope="module")
def stand(tmp_path_factory):
    """The program that Slurm starts in the place of a task's command."""
    folder = tmp_path_factory.mktemp("stand")
    for name, content in compiling.sources().items():
        (folder / name).write_bytes(content)
    argv = [CC, "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-o", "perdure-task", *compiling.PROGRAM]
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / "perdure-task"


def stood(stand, command, *arguments, answer, **environment):
    """Let it stand for a command, and a seat answer; return how it ended, and the request that the seat got."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        told = f"{theirs.fileno()} {os.getpid()} 1 {command}"
        process = subprocess.Popen(
            ["/proc/self/fd/9", *arguments],
            executable=stand,
            env={"PERDURE_TASK": told, "PATH": os.environ["PATH"], **environment},
            pass_fds=[theirs.fileno()],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        theirs.close()
        asked, descriptors = request.receive(ours, within_s=30.0)
        for descriptor in descriptors:
            os.close(descriptor)
        ours.sendall(answer + b"\n")
        out, said = process.communicate(timeout=60)
    return process.returncode, out, said, asked


def test_the_program_asks_for_the_command_in_whose_place_it_was_started(stand):
    status, out, said, asked = stood(
        stand, "/a path/with  spaces ", "x", answer=replies.encode(Reply(ended=Ended(3))), PERDURE_UNMANAGED="of the script", ITS="own"
    )
    assert (status, out, said) == (3, "", "")
    assert asked.argv == ("/a path/with  spaces ", "x")
    assert asked.environment == {"PATH": os.environ["PATH"], "ITS": "own"}


NO = wire.encode({"unmanaged": "no seat; it runs unmanaged"})
SHOW = 'echo "$1, ${PERDURE_TASK-untold}: $PERDURE_UNMANAGED"; ls -l /proc/$$/fd 2>/dev/null | grep -c socket'


@pytest.mark.parametrize("shell", ["sh", "/bin/sh"])
@pytest.mark.parametrize(("told", "says"), [("", "perdure: no seat; it runs unmanaged\n"), ("no seat; it runs unmanaged", "")])
def test_the_program_becomes_the_command_of_a_task_that_is_not_kept_and_says_why_once(stand, shell, told, says):
    status, out, said, _ = stood(stand, shell, "-c", SHOW, "-", "it", answer=NO, PERDURE_UNMANAGED=told)
    assert (out, said) == ("it, untold: no seat; it runs unmanaged\n0\n", says)
    assert status == 1, "the command's own"


def test_a_command_that_cannot_be_run_ends_the_task_as_slurm_would_end_it(stand):
    status, out, said, _ = stood(stand, "/no/such", answer=NO)
    assert (status, out) == (errno.ENOENT, "")
    assert said.endswith("perdure: /no/such cannot be run: No such file or directory\n")


@pytest.mark.parametrize("told", [None, "", "1 2", "3 4 0"])
def test_a_program_that_was_told_of_no_command_says_so(stand, told):
    environment = {} if told is None else {"PERDURE_TASK": told}
    done = subprocess.run([stand], env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (1, "")
    assert "PERDURE_TASK" in done.stderr


# What there is instead where a distribution's static C library is not installed.
NO_STATIC = """#!/bin/sh
case " $* " in *" -static "*) echo "ld: error: cannot find -lc" >&2; exit 1 ;; esac
exec %s "$@"
"""
INTERPRETER = b"/ld-linux"


def test_the_program_needs_nothing_of_a_jobs_libraries_where_that_can_be_and_is_made_all_the_same(tmp_path):
    compiler = tmp_path / "cc"
    compiler.write_text(NO_STATIC % CC)
    compiler.chmod(0o755)
    plain, other = (compiling.make_program(cc, prefix="/opt/perdure") for cc in (CC, str(compiler)))
    assert INTERPRETER not in plain
    assert INTERPRETER in other


OTHER, SAID, UNMANAGED, STARTED, ENDED = range(5)


def heard(shim, line):
    room = ctypes.create_string_buffer(line)
    answer = shim.reply_read(room)
    return answer.kind, answer.text, answer.code, answer.hint, answer.status, answer.is_error


def test_what_a_seat_says_is_heard(shim):
    assert heard(shim, replies.encode(Reply(said='a "b" \\ é ∞\tc')))[:2] == (SAID, 'a "b" \\ é ∞ c'.encode())
    assert heard(shim, replies.encode(Reply(started=Started("slurm-lab-7"))))[0] == STARTED
    assert heard(shim, replies.encode(Reply(ended=Ended(0))))[0::4] == (ENDED, 0)
    assert heard(shim, replies.encode(Reply(ended=Ended(143))))[4:] == (143, False)
    assert heard(shim, wire.encode({"unmanaged": "no"}))[:2] == (UNMANAGED, b"no")
    assert heard(shim, replies.encode(Reply(suspended=True)))[0] == OTHER


def test_an_error_is_heard_with_code_message_and_hint(shim):
    error = wire.ErrorDocument("workload-busy", 'is "running": {"hint":"no"}', "stop it there")
    kind, text, code, hint, status, is_error = heard(shim, replies.encode(Reply(ended=Ended(11, error))))
    assert (kind, text, code, hint) == (ENDED, b'is "running": {"hint":"no"}', b"workload-busy", b"stop it there")
    assert (status, is_error) == (11, True)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{",
        b'{"said":"',
        b'{"said":"x\\',
        b'{"said":"\\u00',
        b'{"said":"\\u',
        b"not json",
        b'{"ended":',
        b'{"other":"x"}',
        b"\xff\xfe",
    ],
)
def test_a_line_that_is_none_is_passed_over(shim, line):
    assert heard(shim, line)[0] == OTHER
