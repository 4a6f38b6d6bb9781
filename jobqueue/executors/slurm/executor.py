"""Attempts as jobs of Slurm.

A job has the name `vedette-OWNER-ATTEMPT-N`: N is the number of the submission
(`jobqueue.executors.slurm.workplace`). One request shows all own jobs; the accounting is asked only
for those that are gone from the controller, or whose end it does not explain.
"""

import contextlib
import dataclasses
import logging
import time
from collections.abc import Mapping

import msgspec

from core.clock import to_ns
from jobqueue.executors.abilities import refusal
from jobqueue.executors.base import AttemptUsage, ExecSession, ExecutorError, NoExecError
from jobqueue.executors.cluster import ClusterExecutor
from jobqueue.executors.pull_failures import pull_failure
from jobqueue.executors.recorded import Ending, ExecutorSite, Record
from jobqueue.executors.settings import SlurmSettings
from jobqueue.executors.slurm.api import SlurmAPI, SlurmJob
from jobqueue.executors.slurm.cluster_text import with_default
from jobqueue.executors.slurm.commands import SlurmCommands
from jobqueue.executors.slurm.observation import SIGNAL_BASE, observe, requeued
from jobqueue.executors.slurm.own_jobs import OwnJobs, UsageReader
from jobqueue.executors.slurm.rest import SlurmREST
from jobqueue.executors.slurm.script import REFUSED, bundle_of, env_text, job_options, problem_of
from jobqueue.executors.slurm.terminal import run_step
from jobqueue.executors.slurm.workplace import STREAMS, Submission, Workplace, copied_records
from jobqueue.executors.spool_files import SPOOL_LIMIT_BYTES
from protocol.attempts import AttemptObservation, AttemptSpec, ObservedState
from protocol.clusters import ClusterKind, ClusterReport

log = logging.getLogger(__name__)

# How often the accounting is asked.
ACCOUNTING_SECONDS = 3.0
# How long an end may lack its cause before it is reported so.
CAUSE_SECONDS = 15.0
# How long a job that began may be missing in the answers of the controller: as long as Slurm by
# default waits for a node (SlurmdTimeout), and longer than a controller needs to start.
MISSING_SECONDS = 300.0
# Ends that the controller explains by itself.
_EXPLAINED = frozenset(
    {"COMPLETED", "TIMEOUT", "OUT_OF_MEMORY", "NODE_FAIL", "PREEMPTED", "DEADLINE", "BOOT_FAIL"}
)
# Ends by which Slurm may have missed that the command had ended before, as when slurmd was killed.
_UNSEEN = frozenset({"NODE_FAIL", "BOOT_FAIL", "CANCELLED"})
_NS = 1_000_000_000


class SlurmExecutor(ClusterExecutor[SlurmSettings]):
    """Runs attempts through Slurm."""

    kind = ClusterKind.SLURM

    def __init__(self, settings: SlurmSettings, site: ExecutorSite) -> None:
        super().__init__(settings, site)
        self._api: SlurmAPI = (
            SlurmREST(settings) if settings.api == "rest" else SlurmCommands(settings)
        )
        folder = settings.work_dir or site.state_dir / "slurm-jobs"
        self._place = Workplace(folder / site.owner)
        self._prefix = f"vedette-{site.owner}-"
        self._jobs = OwnJobs(self._api, self._prefix, site.clock)
        self._accounted_at = float("-inf")
        self._accounted: dict[str, SlurmJob] = {}
        self._usage = UsageReader(self._api)

    def read_cluster(self) -> ClusterReport:
        """Return its nodes and queues."""
        state = self._api.cluster()
        self._place.check()
        return ClusterReport(
            kind=self.kind,
            name=self._settings.name or state.name,
            version=state.version,
            runs_images=self._settings.containers != "none",
            waiting_jobs=state.waiting_jobs,
            max_waiting=self._settings.max_waiting,
            nodes=list(state.nodes),
            queues=with_default(state.queues, self._settings.partition),
        )

    def close(self) -> None:
        """End the reading; jobs of the cluster continue."""
        super().close()
        self._api.close()

    def _unsupported(self, spec: AttemptSpec) -> str:
        return refusal(self.name, spec) or problem_of(spec, self._settings)

    def _submit(self, spec: AttemptSpec) -> None:
        """Submit the attempt, unless a job of it is there or has run."""
        if not self._has_image(spec):
            return
        attempt_id = spec.attempt_id
        submission = self._place.submission(attempt_id)
        if submission is not None and self._is_submitted(attempt_id, submission):
            return
        number = submission.number + 1 if submission is not None else 1
        options = job_options(
            spec,
            self._settings,
            self._place,
            name=self._name_of(attempt_id, number),
            number=number,
        )
        self._place.write_env(attempt_id, number, env_text(spec))
        submission = Submission(
            number=number,
            submitted_at_ns=to_ns(self._site.clock()),
            grace_seconds=self._site.grace_seconds_of(spec),
        )
        self._place.save(attempt_id, submission)
        submission.job_id = self._api.submit(options)
        self._jobs.expect_change()
        self._place.save(attempt_id, submission)

    def _is_submitted(self, attempt_id: str, submission: Submission) -> bool:
        """Return whether the last submission counts; else it never will."""
        if submission.job_id is not None and submission.missing_at_ns is None:
            return True
        self._jobs.refresh(is_forced=True)
        jobs = self._current(attempt_id, submission)
        if not jobs and (claim := self._place.void(attempt_id, submission.number)).is_void:
            return False
        submission.job_id = jobs[0].job_id if jobs else claim.job_id
        submission.missing_at_ns = None
        self._place.save(attempt_id, submission)
        return True

    def _has_image(self, spec: AttemptSpec) -> bool:
        if not spec.image or self._settings.containers != "oci":
            return True
        path = bundle_of(spec.image, self._settings) / "config.json"
        if path.is_file():
            return True
        message = f"Image {spec.image!r} not found: {path} is missing. Make its OCI bundle there."
        record = self._record(spec.attempt_id)
        self._end(record, ObservedState.FAILED, Ending("image_not_found", message))
        return False

    def _stop(self, attempt_id: str) -> None:
        """Send SIGTERM, and SIGKILL after the grace; a job that waits is cancelled."""
        submission = self._place.submission(attempt_id)
        if submission is None:
            return
        now_ns = to_ns(self._site.clock())
        jobs = [job for job in self._jobs.of(attempt_id) if not job.has_ended]
        running = [job.job_id for job in jobs if job.state not in {"PENDING", "CONFIGURING"}]
        waiting = {job.job_id for job in jobs} - set(running)
        job_id = submission.job_id
        if not jobs and job_id is not None and not self._jobs.has_elsewhere(attempt_id, job_id):
            waiting.add(job_id)
        for job_id in waiting:
            self._jobs.cancel(job_id)
        if submission.stopping_at_ns is None:
            submission.stopping_at_ns = now_ns
            self._place.save(attempt_id, submission)
            for job_id in running:
                self._api.signal(job_id, "TERM")
                self._jobs.expect_change()
        elif now_ns - submission.stopping_at_ns >= submission.grace_seconds * _NS:
            for job_id in running:
                # Slurm's own grace (KillWait) would be added to ours.
                self._jobs.cancel(job_id, is_killed=True)

    def _delete(self, attempt_id: str) -> None:
        submission = self._place.submission(attempt_id)
        if submission is not None:
            for job in self._jobs.of(attempt_id):
                if not job.has_ended:
                    self._api.cancel(job.job_id)
            # A job that Slurm has yet to show must find no claim to make.
            self._place.remove(attempt_id)
        self._jobs.by_attempt.pop(attempt_id, None)
        self._usage.forget(attempt_id)

    def _read(self) -> Mapping[str, AttemptObservation]:
        self._jobs.refresh()
        now_ns = to_ns(self._site.clock())
        observations: dict[str, AttemptObservation] = {}
        unexplained: dict[str, Submission] = {}
        open_ids = {
            attempt_id for attempt_id, record in self._records.items() if record.outcome is None
        }
        for attempt_id in sorted(open_ids | self._jobs.by_attempt.keys()):
            submission = self._submission_of(attempt_id)
            if submission is None:
                continue
            self._cancel_others(attempt_id, submission)
            job = self._job_of(attempt_id, submission)
            if job is None or (job.has_ended and not _is_explained(job)):
                unexplained[attempt_id] = submission
            else:
                observations[attempt_id] = self._observed(attempt_id, submission, job)
        if any(attempt_id in open_ids for attempt_id in unexplained):
            self._account(unexplained)
        for attempt_id, submission in unexplained.items():
            seen = self._explained(attempt_id, submission, now_ns)
            if seen is not None:
                observations[attempt_id] = seen
        return observations

    def _submission_of(self, attempt_id: str) -> Submission | None:
        """Return the submission of an attempt; one whose file was lost, from its jobs."""
        submission = self._place.submission(attempt_id)
        if submission is None and (jobs := self._jobs.of(attempt_id)):
            if all(job.has_ended for job in jobs) and attempt_id not in self._records:
                return None  # it was removed, and Slurm still shows it
            number = max(int(job.name.rpartition("-")[2]) for job in jobs)
            submission = Submission(number=number)
        return submission

    def _name_of(self, attempt_id: str, number: int) -> str:
        """Return the name of the job of a submission."""
        return f"{self._prefix}{attempt_id}-{number}"

    def _current(self, attempt_id: str, submission: Submission) -> list[SlurmJob]:
        name = self._name_of(attempt_id, submission.number)
        return [job for job in self._jobs.of(attempt_id) if job.name == name]

    def _job_of(self, attempt_id: str, submission: Submission) -> SlurmJob | None:
        """Return the job that counts: the one with the claim, else the first."""
        jobs = self._current(attempt_id, submission)
        if len(jobs) > 1 and (claim := self._place.claim(attempt_id, submission.number)):
            jobs = [job for job in jobs if job.job_id == claim.job_id]
        job = min(jobs, key=lambda job: job.job_id, default=None)
        if job is not None and (submission.job_id is None or submission.missing_at_ns):
            submission.job_id, submission.missing_at_ns = job.job_id, None
            self._place.save(attempt_id, submission)
        return job

    def _cancel_others(self, attempt_id: str, submission: Submission) -> None:
        """Cancel jobs that don't count: they would find the claim made, and end at once."""
        counted = self._job_of(attempt_id, submission)
        for job in self._jobs.of(attempt_id):
            if job is not counted and not job.has_ended:
                log.warning("job %d is a second one of %s", job.job_id, attempt_id)
                with contextlib.suppress(ExecutorError):
                    self._jobs.cancel(job.job_id)

    def _observed(
        self, attempt_id: str, submission: Submission, job: SlurmJob
    ) -> AttemptObservation:
        has_begun = job.state not in {"PENDING", "CONFIGURING"}
        number = submission.number
        claim = self._place.claim(attempt_id, number) if has_begun or job.restarts else None
        if job.restarts and not job.has_ended and self._record(attempt_id).outcome is None:
            self._api.cancel(job.job_id)
            return requeued(attempt_id, job)
        exited = self._place.exit_code(attempt_id, number) if job.state in _UNSEEN else None
        if job.has_ended and job.exit_status == (REFUSED, 0):
            job = self._run_of(attempt_id, number, job)
        elif exited is not None and exited[0] < SIGNAL_BASE and exited[1] < (job.ended_at_ns or 0):
            job = _as_exited(job, exited)
        return observe(attempt_id, job, claim.gpu_indices if claim is not None else ())

    def _run_of(self, attempt_id: str, number: int, job: SlurmJob) -> SlurmJob:
        """Return the first run of a job that Slurm has launched twice: its second one was refused.

        The command may also have ended with this code.
        """
        exited = self._place.exit_code(attempt_id, number)
        if exited is not None:
            return _as_exited(job, exited)
        since_ns = to_ns(self._site.clock()) - (job.ended_at_ns or 0)
        is_patient = since_ns < MISSING_SECONDS * _NS
        return dataclasses.replace(job, state="COMPLETING" if is_patient else "NODE_FAIL")

    def _account(self, submissions: Mapping[str, Submission]) -> None:
        """Ask the accounting for jobs that the controller does not explain."""
        now = time.monotonic()
        if now - self._accounted_at < ACCOUNTING_SECONDS:
            return
        self._accounted_at = now
        job_ids = {
            submission.job_id
            for submission in submissions.values()
            if submission.job_id is not None
        }
        try:
            jobs = self._api.ended_jobs(job_ids)
        except ExecutorError as error:
            log.info("Slurm's accounting does not answer: %s", error)
            return
        # A controller that was killed may give the ids of its last seconds to other jobs.
        self._accounted = {job.name: job for job in jobs if job.has_ended}

    def _explained(
        self, attempt_id: str, submission: Submission, now_ns: int
    ) -> AttemptObservation | None:
        """Return the end of a job by the accounting, the controller or its own file.

        None is an attempt that Slurm may never have got: it is submitted again.
        """
        shown = self._job_of(attempt_id, submission)
        accounted = self._accounted.get(self._name_of(attempt_id, submission.number))
        job = accounted or shown
        if accounted is not None and not any(accounted.exit_status or ()):
            # slurmrestd 22.05 says 0 of every exit code.
            exited = self._place.exit_code(attempt_id, submission.number)
            status = shown.exit_status if shown is not None else (exited[0] if exited else 0, 0)
            job = dataclasses.replace(accounted, exit_status=status)
        if job is not None and shown is None and job.state == "CANCELLED" and not job.cancelled_by:
            # Nobody has: the controller lost it, and its node ended it.
            job = dataclasses.replace(job, state="NODE_FAIL")
        if job is not None:
            ended_at_ns = job.ended_at_ns or now_ns
            is_patient = shown is not None and now_ns - ended_at_ns < CAUSE_SECONDS * _NS
            if accounted is None and is_patient and self._is_open(attempt_id):
                # It has not ended yet for those who ask, so that the cause can come.
                job = dataclasses.replace(job, state="COMPLETING")
            return self._observed(attempt_id, submission, job)
        if not self._is_open(attempt_id):
            return None
        return self._missing(attempt_id, submission, now_ns)

    def _is_open(self, attempt_id: str) -> bool:
        record = self._records.get(attempt_id)
        return record is None or record.outcome is None

    def _missing(
        self, attempt_id: str, submission: Submission, now_ns: int
    ) -> AttemptObservation | None:
        """Return the observation of an attempt whose job neither controller nor accounting has."""
        number = submission.number
        claim = self._place.claim(attempt_id, number)
        if claim is None or claim.is_void:
            if submission.job_id is not None and submission.missing_at_ns is None:
                # The controller may have lost what it had accepted.
                submission.missing_at_ns = now_ns
                self._place.save(attempt_id, submission)
            return None
        submission.missing_at_ns = submission.missing_at_ns or now_ns
        running = SlurmJob(job_id=claim.job_id, name="", state="RUNNING", node=claim.node)
        exited = self._place.exit_code(attempt_id, number)
        if exited is not None:
            return observe(attempt_id, _as_exited(running, exited), claim.gpu_indices)
        since_ns = max(submission.missing_at_ns, self._jobs.answering_since_ns or now_ns)
        if now_ns - since_ns < MISSING_SECONDS * _NS:
            return msgspec.structs.replace(
                observe(attempt_id, running, claim.gpu_indices),
                message=f"Slurm does not show job {claim.job_id} any more; waiting for it.",
            )
        return AttemptObservation(
            attempt_id=attempt_id,
            state=ObservedState.FAILED,
            reason="node_failed",
            message=f"Slurm has lost job {claim.job_id}, which ran on {claim.node}.",
        )

    def _ending(self, record: Record, seen: AttemptObservation) -> Ending:
        """Return why an attempt ended; scripts that never began, and images, have own reasons."""
        record.started_at_ns = record.started_at_ns or seen.started_at_ns
        ending = super()._ending(record, seen)
        if seen.state is not ObservedState.FAILED or record.stop_reason is not None:
            return ending
        submission = self._place.submission(record.attempt_id)
        if submission is None or ending.reason not in {"exit_code", "signal", "executor_error"}:
            return ending
        has_begun = self._place.claim(record.attempt_id, submission.number) is not None
        if not has_begun and seen.node:
            message = (
                f"Node {seen.node} can't run the script in {self._place.folder}: all nodes must "
                f"share that folder (work_dir). Slurm said: {seen.message}"
            )
            return Ending("start_failed", message, ending.exit_code)
        if record.image and (text := self._image_failure(record.attempt_id, submission.number)):
            return Ending(*pull_failure(record.image, text), ending.exit_code)
        return ending

    def _image_failure(self, attempt_id: str, number: int) -> str:
        """Return what pyxis said of an image that it can't import."""
        path = self._place.output(attempt_id, number, "err")
        with contextlib.suppress(OSError), path.open("rb") as file:
            text = file.read(64 * 1024).decode(errors="replace")
            if "pyxis:" in text and "failed to import" in text:
                return text[-1000:]
        return ""

    def _copy_output(self, record: Record) -> None:
        submission = self._place.submission(record.attempt_id)
        if submission is None or record.spool_bytes >= SPOOL_LIMIT_BYTES:
            return
        for stream in STREAMS:
            path = self._place.output(record.attempt_id, submission.number, stream)
            for offset, records in copied_records(
                path, stream, record.read_bytes.get(path.name, 0), self._site.clock
            ):
                record.read_bytes[path.name] = offset
                if not self._append_bounded(record, records):
                    return

    def usage(self, attempt_id: str) -> AttemptUsage | None:
        """Return the usage of a running attempt, which is read for all of them together."""
        with self._lock:
            running = {
                job.job_id: other_id
                for other_id, jobs in self._jobs.by_attempt.items()
                for job in jobs
                if job.state == "RUNNING" and self._is_open(other_id)
            }
            return self._usage.of(attempt_id, running)

    async def execute(self, attempt_id: str, session: ExecSession) -> int:
        """Run a command beside the attempt, on its node, as a step of its job."""
        record = self._records.get(attempt_id)
        job = next((job for job in self._jobs.of(attempt_id) if not job.has_ended), None)
        if not isinstance(self._api, SlurmCommands):
            raise NoExecError("Terminals need Slurm's commands; this connector uses slurmrestd.")
        if record is None or job is None:
            raise NoExecError("The job does not run on this cluster now.")
        if record.image:
            raise NoExecError("Jobs with an image have no terminal on Slurm.")
        return await run_step(self._api, job.job_id, session)


def _as_exited(job: SlurmJob, exited: tuple[int, int]) -> SlurmJob:
    """Return a job that ended with its command, by its exit code and time."""
    code, ended_at_ns = exited
    state = "FAILED" if code else "COMPLETED"
    return dataclasses.replace(job, state=state, exit_status=(code, 0), ended_at_ns=ended_at_ns)


def _is_explained(job: SlurmJob) -> bool:
    """Return whether the controller says why a job ended, so that no one else need be asked."""
    return job.state in _EXPLAINED or (job.state == "FAILED" and any(job.exit_status or ()))
