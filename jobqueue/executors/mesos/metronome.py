"""Attempts as jobs of Metronome, with one run each.

A job with GPUs runs under Mesos' own containerizer (`ucr`), all others under Docker's.

Source: Metronome's API description (`jobspec.schema.json`).
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from jobqueue.executors.base import ConflictError, NotFoundError
from jobqueue.executors.confinement import docker_parameters
from jobqueue.executors.mesos.executor import JobsExecutor, Site, memory_of, ns_of, volumes_of
from jobqueue.executors.recorded import environment_of
from protocol.attempts import AttemptObservation, AttemptSpec, ObservedState

log = logging.getLogger(__name__)

Answer = dict[str, Any]

LEAST_MEMORY = 32
LEAST_CPUS = 0.01
EMBED = ("activeRuns", "history")


class MetronomeExecutor(JobsExecutor):
    """Runs attempts through Metronome."""

    name = "metronome"
    names: Sequence[str] = (name,)

    title = "Metronome"

    def _submit(self, spec: AttemptSpec) -> None:
        """Create the job, then its run, each only if it is missing."""
        job_id = self._job_name(spec.attempt_id)
        try:
            self._api.request("POST", "/v1/jobs", body=job_of(spec, self._site, job_id=job_id))
        except ConflictError:
            log.info("Metronome has job %s already", job_id)
        job = self._api.get(f"/v1/jobs/{job_id}", {"embed": EMBED})
        history = job.get("history") or {}
        if not job.get("activeRuns") and not _finished(history):
            self._api.request("POST", f"/v1/jobs/{job_id}/runs", body={})

    def _stop(self, attempt_id: str) -> None:
        job_id = self._job_name(attempt_id)
        try:
            runs = f"/v1/jobs/{job_id}/runs"
            active = self._api.get(runs)
            for run in active:
                self._api.request("POST", f"{runs}/{run['id']}/actions/stop")
            history = self._api.get(f"/v1/jobs/{job_id}", {"embed": EMBED}).get("history") or {}
            if not active and not _finished(history):
                self._delete(attempt_id)  # nothing has run, and nothing would show the stop
        except NotFoundError:
            log.debug("a run of %s has ended meanwhile", attempt_id)

    def _delete(self, attempt_id: str) -> None:
        path, params = f"/v1/jobs/{self._job_name(attempt_id)}", {"stopCurrentJobRuns": "true"}
        try:
            self._api.request("DELETE", path, params=params)
        except NotFoundError:
            log.debug("job of %s is gone", attempt_id)

    def _read(self) -> Mapping[str, AttemptObservation]:
        prefix = self._job_name("")
        jobs = self._api.get("/v1/jobs", {"embed": EMBED})
        return {
            job["id"].removeprefix(prefix): observe_job(job["id"].removeprefix(prefix), job)
            for job in jobs
            if job["id"].startswith(prefix)
        }


def job_of(spec: AttemptSpec, site: Site, *, job_id: str) -> Answer:
    """Return the definition of the job."""
    run: Answer = {
        "cpus": max(LEAST_CPUS, spec.cpus),
        "mem": max(LEAST_MEMORY, memory_of(spec)),
        "disk": 0,
        "env": environment_of(spec),
        "restart": {"policy": "NEVER"},
        "taskKillGracePeriodSeconds": site.grace_seconds_of(spec),
        "volumes": volumes_of(spec),
    }
    if spec.command:
        run["args"] = list(spec.command)
    if spec.gpu_uuids:
        run |= {"gpus": len(spec.gpu_uuids), "ucr": {"image": {"id": spec.image}}}
    else:
        parameters = docker_parameters(spec, pids_limit=site.pids_limit)
        # Without networks, Metronome's default is that of the host.
        run["networks"] = [{"mode": "container/bridge"}]
        run["docker"] = {"image": spec.image, "parameters": parameters}
    if not site.is_anywhere:
        rule = {"attribute": "@hostname", "operator": "LIKE", "value": site.hostname}
        run["placement"] = {"constraints": [rule]}
    return {
        "id": job_id,
        "description": spec.name,
        "labels": {"vedette-job": spec.job_id},
        "run": run,
    }


def observe_job(attempt_id: str, job: Mapping[str, Any]) -> AttemptObservation:
    """Return the observation of an attempt from its job, active runs and history."""
    history, active = job.get("history") or {}, job.get("activeRuns") or []
    starts = [task["startedAt"] for run in active for task in run["tasks"] if task.get("startedAt")]
    started_at_ns = min((ns_of(start) for start in starts), default=None)
    if active:
        is_running = any(run["status"] == "ACTIVE" for run in active)
        return AttemptObservation(
            attempt_id=attempt_id,
            state=ObservedState.RUNNING if is_running else ObservedState.STARTING,
            message="" if is_running else "Waits in Metronome for an offer of the Mesos agent.",
            started_at_ns=started_at_ns if is_running else None,
        )
    if not (finished := _finished(history)):
        return AttemptObservation(attempt_id=attempt_id, state=ObservedState.STARTING)
    has_succeeded = bool(history.get("successfulFinishedRuns"))
    return AttemptObservation(
        attempt_id=attempt_id,
        state=ObservedState.SUCCEEDED if has_succeeded else ObservedState.FAILED,
        finished_at_ns=ns_of(finished[0]["finishedAt"]),
    )


def _finished(history: Mapping[str, Any]) -> list[Answer]:
    return [*history.get("successfulFinishedRuns", []), *history.get("failedFinishedRuns", [])]
