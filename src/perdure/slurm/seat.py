"""The seat of one task of a job: root's process, which the shim started in it, before it takes the user's request. Called by
`perdure slurm seat`.

What it is told on its command line comes from slurmstepd. Whatever it finds wrong here, before anything of the user's runs, it says in one
line, and the task runs unmanaged. But one that was saved before does not: it would start over, into the files of the work that can still
be gone on with. Such a job is held, and its task ends with this process, whatever ends that.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import socket
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TypeVar

import msgspec

from perdure import errors
from perdure.agent import replies, seat, site, surroundings
from perdure.agent.caller import Caller
from perdure.agent.replies import Ended, Reply, Started
from perdure.agent.surroundings import Surroundings
from perdure.agent.trusted import Trusted
from perdure.model.checkpoint import Owner
from perdure.slurm import commands, naming, optin, scheduler
from perdure.slurm.scheduler import SlurmJob
from perdure.supervisor import early, place
from perdure.supervisor.scheduler import Standing

_T = TypeVar("_T")

CHANNEL = 3
"""The descriptor of the socket to the task."""

_TRIES = 4
_PAUSE_S = 2.0
_STORE_S = 400.0
"""So long a job that comes back waits for a store that is away: its copy on a node that was cut off has ended itself by then."""


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What slurmstepd knows of the task."""

    owner: Owner
    job: int
    step: str
    """`naming.BATCH`, or the step's number."""
    task_pid: int
    own: str
    """The job's options, as it wrote them."""
    defaults: tuple[str, ...]
    """The admin's options, each ``key=value``."""


class _Unmanaged(Exception):
    """The task is to be run as if Perdure did not exist; the text says why."""


class _Gone(Exception):
    """Slurm's commands are gone from this node, and the task may have been saved; the cause says more."""


class _Terminated(BaseException):
    """SIGTERM came, while nothing of the task had been begun. No error, as `early.Left`."""


def sit(facts: Facts) -> int:
    """Keep the task that `facts` tell of. Returns the workload's exit status; 0 when there was nothing to keep."""
    os.umask(0o022)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # what users sent must not end up in a core file of root's
    with socket.socket(fileno=CHANNEL) as channel:
        hold: _Hold | None = None
        try:
            with _terminable():
                _reach_slurm()
                found, is_first = _find(channel, facts)
                around = _take_seat(channel, facts)
                name = naming.name(found.cluster, facts.job, facts.step)
                if not is_first:
                    hold = _Hold(found, name, facts.owner)
                    _wait_for_store(channel, facts.owner)
                    if _may_be_saved(facts.owner, lambda one: one == name):
                        # From here on the task does not run by itself, should this process be gone.
                        _say(channel, Reply(started=Started(name)))
        except _Unmanaged as error:
            _say(channel, Reply(unmanaged=f"{error}; it runs unmanaged"))
            return 0
        except errors.PerdureError as error:
            return _leave(channel, error, hold)
        except _Gone as error:
            _say(channel, Reply(said=str(error)))
            _say(channel, Reply(ended=Ended(errors.SchedulerUnavailable.exit_status)))
            return errors.SchedulerUnavailable.exit_status
        except _Terminated:
            return _end(channel, facts)
        chosen = optin.choose(facts.own, facts.defaults)
        for problem in chosen.problems:
            _say(channel, Reply(said=problem))
        trusted = Trusted(
            name=name,
            fresh=is_first,
            options=chosen.options,
            job=f"slurm {facts.job}.{facts.step}",
            is_script=facts.step == naming.BATCH,
            caller_pid=facts.task_pid,
            limits=around.limits,
        )
        return seat.serve(channel, facts.owner, trusted, scheduler=found, refuse=hold or _let_it_run)


class _Hold:
    """Holds the job of a workload that cannot be begun, so that it is not started over; but lets it run if nothing of it is saved."""

    def __init__(self, job: SlurmJob, name: str, owner: Owner) -> None:
        self._job, self._name, self._owner = job, name, owner

    def __call__(self, error: errors.PerdureError, tell: Callable[[Reply], None]) -> bool:
        """Hold it because of `error`, after that was said; false: let it run."""
        busy = isinstance(error, errors.WorkloadBusy | errors.StaleLife)
        if busy or not _may_be_saved(self._owner, lambda name: name == self._name):
            return False
        # Slurm ends this process with the attempt. A task whose seat is gone runs by itself, unless that had begun.
        tell(Reply(started=Started(self._name)))
        reason, told = error.in_words, set[str]()

        def say_once(words: str) -> None:
            if words not in told:
                told.add(words)
                tell(Reply(said=words))

        try:
            _patiently(lambda: self._job.hold(reason, say_once))
        except errors.PerdureError as problem:
            say_once(f"{reason}; not started over, since it is saved; and not held: {problem.in_words}")
        return True


def _let_it_run(_error: errors.PerdureError, _tell: Callable[[Reply], None]) -> bool:
    return False


def _leave(channel: socket.socket, error: errors.PerdureError, hold: _Hold | None) -> int:
    """There is nothing to be kept, because of `error`. Returns this process's exit status."""
    if hold is None or not hold(error, lambda reply: _say(channel, reply)):
        _say(channel, Reply(unmanaged=f"{error.in_words}; it runs unmanaged"))
        return 0
    _say(channel, Reply(ended=Ended(error.exit_status)))
    return error.exit_status


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """Let SIGTERM end what is done within, by `_Terminated`: also one that came while this process started, from when on it is blocked.

    One that comes afterwards, before the supervisor heeds it, is passed over: that looks at the job besides.
    """

    def terminate(_number: int, _frame: FrameType | None) -> None:
        raise _Terminated

    signal.signal(signal.SIGTERM, terminate)
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        yield
    finally:
        signal.signal(signal.SIGTERM, lambda _number, _frame: None)


def _end(channel: socket.socket, facts: Facts) -> int:
    """SIGTERM came: end the task, and let Slurm run the job again, unless it is cancelled or runs for the first time. Returns its status.

    Slurm may send it to an attempt by mistake, which it goes on with: to the first one on a node that has just come back, and that it
    tells to end what was on it before.
    """
    status = 128 + signal.SIGTERM
    with contextlib.suppress(_Unmanaged, errors.PerdureError):
        job, is_first = _ask(facts)
        outlook = _patiently(job.look)
        if outlook.standing is not Standing.CANCELLED and (outlook.is_ending or not is_first):
            left = early.Left(signal.SIGTERM, outlook.notice.reason if outlook.notice is not None else "")
            _say(channel, Reply(said=early.take_leave(job, left, f"{left.name}: nothing of it was started")))
            status = left.status
    _say(channel, Reply(ended=Ended(status)))
    return status


def _patiently(ask: Callable[[], _T]) -> _T:
    """Return what `ask` returns, which asks Slurm: a few times. Raises `errors.SchedulerUnavailable`, and what else `ask` raises."""
    for _left in range(_TRIES - 1):
        try:
            return ask()
        except errors.SchedulerUnavailable:
            time.sleep(_PAUSE_S)
    return ask()


def _reach_slurm() -> None:
    """Let Slurm's commands be found where the site has them. Raises `errors.SettingError`."""
    folder = site.read(os.environ).values["slurm-bin"].value
    if folder:
        os.environ["PATH"] = f"{folder}:{os.environ.get('PATH', os.defpath)}"


def _find(channel: socket.socket, facts: Facts) -> tuple[SlurmJob, bool]:
    """Ask Slurm for what the supervisor has to know, and whether this is the job's first attempt.

    Neither spank's items nor the environment tell the count of restarts to the shim in all versions; the controller does. Where it does
    not answer, a task of which something may be saved waits for it. Raises `_Unmanaged`, `errors.SchedulerUnavailable`, and `_Gone` when
    such a task waits for commands that are not there.
    """
    has_said, absence = False, commands.Absence()
    while True:
        try:
            return _ask(facts)
        except errors.SchedulerUnavailable as error:
            if not has_said:
                # The name of its cluster is the controller's to say, too.
                if not _may_be_saved(facts.owner, lambda name: (naming.read(name) or ())[1:] == (facts.job, facts.step)):
                    raise
                _say(channel, Reply(said=f"{error.in_words}; waiting for Slurm's controller, since the job may have been saved"))
                has_said = True
            if absence.lasts(error):
                # Without them it cannot be held either.
                raise _Gone(
                    f"{error.in_words}; not started over, since the job may have been saved: "
                    f"scontrol requeue {facts.job} runs it again, where Slurm's client is"
                ) from error
        _pause(channel)


def _may_be_saved(owner: Owner, is_own: Callable[[str], bool]) -> bool:
    """Tell whether the user's store has a checkpoint of a workload of whose name `is_own` says so, or does not tell."""
    try:
        with place.opened(site.read(os.environ).place_of(owner)) as repository:
            return any(repository.checkpoints(name) for name in repository.workloads() if is_own(name))
    except errors.StoreMissing:
        return False
    except errors.PerdureError:
        return True


def _ask(facts: Facts) -> tuple[SlurmJob, bool]:
    seen = _patiently(lambda: scheduler.see(facts.job, facts.owner))
    if "+" in seen.address:
        raise _Unmanaged("heterogeneous jobs cannot be saved")
    around = _patiently(lambda: scheduler.site(facts.owner, seen.partition))
    if not seen.may_requeue:
        raise _Unmanaged(
            "Slurm does not put this job into its queue again (--no-requeue, or JobRequeue=0 in slurm.conf), so that it is not saved"
        )
    return SlurmJob(facts.job, seen.restarts, facts.owner, around), seen.restarts == 0


def _take_seat(channel: socket.socket, facts: Facts) -> Surroundings:
    """Wait until the task asks, and join it where Slurm has put it by then: its control groups, priority, processors.

    It asks once Slurm has prepared it, which takes as long as the site's programs for that do, or it ends.
    """
    if os.getppid() != facts.task_pid:
        raise _Unmanaged("the task has ended")
    owner, pidfd = facts.owner, os.pidfd_open(facts.task_pid)
    try:
        poll = select.poll()
        poll.register(channel, select.POLLIN)
        poll.register(pidfd, select.POLLIN)
        if channel.fileno() not in dict(poll.poll()):
            raise _Unmanaged("the task has ended")
        caller = Caller(uid=owner.uid, gid=owner.gid, groups=owner.groups, pid=facts.task_pid, pidfd=pidfd)
        found = surroundings.of(caller)
        surroundings.put_on(found)
        return found
    finally:
        os.close(pidfd)


def _wait_for_store(channel: socket.socket, owner: Owner) -> None:
    """Wait a while for a store that is away: the job's checkpoints are in it, and its copy on a node that was cut off may still run.

    Raises `_Unmanaged` when the task ends meanwhile, `errors.StoreUnavailable` when it stays away.
    """
    until_s, has_said = time.monotonic() + _STORE_S, False
    while True:
        try:
            with place.opened(site.read(os.environ).place_of(owner)):
                return
        except errors.StoreMissing:
            return
        except errors.StoreUnavailable as error:
            if time.monotonic() > until_s:
                raise
            if not has_said:
                _say(channel, Reply(said=f"{error}; waiting for the store"))
                has_said = True
        _pause(channel)


def _pause(channel: socket.socket) -> None:
    """Wait a moment before the next try. Raises `_Unmanaged` when the task ends meanwhile."""
    poll = select.poll()
    poll.register(channel, select.POLLRDHUP)
    if poll.poll(_PAUSE_S * 1000):
        raise _Unmanaged("the task has ended")


def _say(channel: socket.socket, reply: Reply) -> None:
    try:
        channel.sendall(replies.encode(reply) + b"\n", socket.MSG_NOSIGNAL)
    except OSError:
        return  # the task is gone, and with it whoever could hear
