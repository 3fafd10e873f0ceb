"""Simulate a GPU fleet's accounting history, with the truth beside it: to learn on, to demonstrate with, and to test estimators.

`simulate(FleetSpec(...), seed)` returns a `Fleet`; `Fleet.write(directory)` makes ``sacct.txt`` and ``truth.json``;
`Fleet.fill(connection)` makes the same attempts a table without going through text. Called by ``perdure history simulate``,
by tests and by benchmarks. The rows come out the same for a seed on every Python from 3.11; nothing here reads a clock.

A job of n GPUs meets each cause of interruption at the rate λ(n) = a·n^β per job-hour (`hazards`), so that what an estimator
finds can be held against what is true. Queue, nodes, repairs, requeues and users then do what they do with it (`engine`).

``truth.json`` (`truth.Truth`, schema 1), in words:

- ``seed``, ``spec`` (`FleetSpec`), ``nodes``, ``start``, ``days``, ``rows``, ``lines``, ``attempts``, ``capacity_gpu_hours``,
  ``allocated_gpu_hours``, ``utilisation``.
- ``rates``: one entry for each of ``infrastructure``, ``preemption`` and ``operator``: ``coefficient_per_job_hour`` (a, at one
  GPU), ``exponent`` (β), ``per_1000_node_days`` (the same law for a job of one node), ``applies_to`` (``all`` or ``qos=low``),
  and totals of what stands in ``by_size``: for each number of GPUs ``attempts``, ``job_hours``, ``exposed_job_hours``,
  ``node_hours``, ``gpu_hours``, ``long_run_rate_per_job_hour`` (λ(n)), ``events`` and ``expected_events`` (the integrated
  intensity over the exposure that really was, lemon nodes and bursts included: ``events − expected_events`` is noise of mean 0),
  ``shown_events`` and ``expected_shown_events`` (those that a strict reading can see), ``start_failures`` (BOOT_FAIL)
  and ``expected_start_failures``. A strict estimator of the rate of a size should find ``expected_shown_events / job_hours``,
  and where it counts BOOT_FAIL as an event, ``expected_start_failures`` more; an inclusive one ``expected_events / job_hours``,
  plus what users' requeues add to it. Heterogeneous jobs count once, at their whole size.
- ``walltime_events_by_size``, ``day_multipliers`` (m(t) by day, null unless bursty), ``lemon_nodes``.
- ``endings`` (rows by true cause, see `endings`), ``states`` (rows by state), ``quirks`` (rows with each planted quirk).
- ``workloads``: the key as an analysis forms it (``cluster user account name gpus``), ``component_gpus`` of heterogeneous jobs,
  ``kind``, ``qos``, ``works`` (results wanted), ``rows``, ``attempts``, ``gpu_hours``, ``work_minutes`` (W, median),
  ``work_sigma``, ``limit_minutes``, ``resumes_itself``, ``always_fails``, and ``policy`` (`policies.PolicyTruth`): the true M, C,
  R, R0, D and durable part; ``retry_gpu_hours`` and ``resume_gpu_hours`` expected for all its works under the true rates; the
  ``best`` of RETRY, RESUME, RESUME-REQUIRED, NEITHER; ``chunks``.
"""

from perdure.history.simulate.fleet import Fleet, prepare_folder, simulate
from perdure.history.simulate.render import check_delimiter
from perdure.history.simulate.spec import FleetSpec, check

__all__ = ["Fleet", "FleetSpec", "check", "check_delimiter", "prepare_folder", "simulate"]
