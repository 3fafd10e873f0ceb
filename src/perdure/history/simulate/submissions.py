"""How works become jobs: ids, names, command lines, chains, arrays, and what fate has in store for each. Called by `engine`."""

from __future__ import annotations

from perdure.history.simulate.draws import Stream
from perdure.history.simulate.jobs import HOUR_S, Job, Work, Workload
from perdure.history.simulate.spec import FleetSpec

FIRST_JOB_ID = 100_001


class Submitter:
    """Makes jobs and numbers them as Slurm does: one raw id each, the last task of an array keeping the array's own."""

    def __init__(self, spec: FleetSpec, stream: Stream) -> None:
        self._spec = spec
        self._stream = stream
        self._next_id = FIRST_JOB_ID
        self._next_record = 1
        self.newlines = 0
        """Jobs whose command line holds a newline."""

    def new_record(self) -> int:
        """Return the next DBIndex."""
        self._next_record += 1
        return self._next_record - 1

    def new_work(self, workload: Workload, number: int) -> Work:
        """Make one work of `workload` and note its true length in it."""
        stream = self._stream
        total_s = max(30, round(stream.log_normal(workload.work_s, workload.sigma)))
        work = Work(workload, number, total_s)
        workload.true_works_s.append(total_s)
        if stream.chance(workload.cancels):
            work.cancels_at_s = max(10, round(total_s * stream.random()))
        return work

    def single(self, work: Work, now: int, *, after: Job | None = None, counter: int | None = None) -> Job:
        """Make one job for `work`, depending on `after` if given."""
        het = 1 if work.workload.het_gpus else 0
        raw_id = self._take_ids(1 + het)
        job = self._job(work, raw_id, f"{raw_id}+1" if het else str(raw_id), now, counter)
        if after is not None:
            job.depends_on = after.raw_id
            after.follower = job
        job.submit_line = self._submit_line(job)
        return job

    def chain(self, work: Work, now: int, segments: int) -> list[Job]:
        """Make `segments` jobs, each to run after the one before it has ended."""
        jobs: list[Job] = []
        for _ in range(segments):
            jobs.append(self.single(work, now, after=jobs[-1] if jobs else None, counter=work.submissions + 1))
        return jobs

    def array(self, works: list[Work], now: int) -> list[Job]:
        """Make one array with a task for each of `works`. Those beyond its throttle are held by earlier ones."""
        first = self._take_ids(len(works))
        jobs = []
        for task, work in enumerate(works):
            raw_id = first if task == len(works) - 1 else first + 1 + task
            job = self._job(work, raw_id, f"{first}_{task}", now, None)
            job.array_job, job.array_task = first, task
            jobs.append(job)
        throttle = works[0].workload.throttle
        line = self._submit_line(jobs[0], tasks=len(works))
        for task, job in enumerate(jobs):
            job.submit_line = line
            if throttle and task >= throttle:
                jobs[task - throttle].held.append(job)
        return jobs

    def _take_ids(self, count: int) -> int:
        self._next_id += count
        return self._next_id - count

    def _job(self, work: Work, raw_id: int, job_id: str, now: int, counter: int | None) -> Job:
        stream, workload = self._stream, work.workload
        work.submissions += 1
        name = workload.pattern.replace("{i}", str(counter if counter is not None else work.number + 1))
        job = Job(work, raw_id, job_id, name, now, now + 1, 0, "")
        if stream.chance(workload.out_of_memory):
            job.fails_how, job.fails_at_s = "out_of_memory", max(5, round(work.total_s * stream.random()))
        elif stream.chance(workload.fails):
            job.fails_how, job.fails_at_s = "user_failure", max(2, round(stream.log_normal(workload.fails_at_s, 0.5)))
        if stream.chance(workload.user_requeues):
            job.requeues_at_s = max(60, round(work.total_s * stream.random()))
        if stream.chance(workload.suspends):
            job.suspend_s = round(stream.log_normal(1.5 * HOUR_S, 0.7))
        if workload.deadline_s is not None:
            job.deadline = now + workload.deadline_s
        return job

    def _submit_line(self, job: Job, *, tasks: int = 0) -> str:
        workload = job.work.workload
        options = [f"--account={workload.user.account}", f"--qos={workload.qos}", f"--job-name={workload.stem}"]
        options += self._resources(workload)
        if workload.limit_word == "UNLIMITED":
            options.append("--time=UNLIMITED")
        elif workload.limit_word != "Partition_Limit":
            options.append(f"--time={clock(workload.limit_s)}")
        options.append("--requeue" if workload.requeue else "--no-requeue")
        if workload.self_requeue:
            options += ["--signal=B:USR1@300", "--open-mode=append"]
        if job.depends_on is not None:
            options.append(f"--dependency=afterany:{job.depends_on}")
        if tasks:
            options.append(f"--array=0-{tasks - 1}" + (f"%{workload.throttle}" if workload.throttle else ""))
        if workload.deadline_s is not None:
            options.append(f"--deadline=now+{workload.deadline_s}seconds")
        if workload.constraint:
            options.append(f"--constraint={workload.constraint}")
        command = "sbatch " + " ".join(options)
        if self._spec.quirks and self._stream.chance(0.003):
            self.newlines += 1
            return f"{command} --wrap module load cuda\npython {workload.kind}.py"
        return f"{command} {workload.kind}.sh"

    def _resources(self, workload: Workload) -> list[str]:
        per_node = self._spec.gpus_per_node
        if workload.het_gpus:
            return [f"--nodes=1 --gpus-per-node={workload.het_gpus} : --nodes={workload.nodes} --gpus-per-node={per_node}"]
        if workload.gpus < per_node:
            return [f"--nodes=1 --gpus={workload.gpus}"]
        return [f"--nodes={workload.nodes} --gpus-per-node={per_node} --exclusive"]


def clock(seconds: int) -> str:
    """Format seconds as Slurm's [D-]HH:MM:SS."""
    days, rest = divmod(seconds, 86_400)
    text = f"{rest // 3600:02d}:{rest % 3600 // 60:02d}:{rest % 60:02d}"
    return f"{days}-{text}" if days else text
