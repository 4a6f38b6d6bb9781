"""Attempts as one-time jobs of Chronos, both generations of its URLs.

An attempt is a job with the schedule `R1//PT24H`: one run, now. Once it has succeeded the
job stays listed as `R0` and disabled, until the attempt is removed. A run that was killed sets
neither `lastSuccess` nor `lastError`; it shows as `R0` that is idle and fresh.

Chronos counts no GPUs: a job with GPUs gets them by NVIDIA's runtime and their UUIDs, and nothing
keeps other jobs of the cluster from them.

Source: Chronos' documentation of its REST API; `JobManagementResource`.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from jobqueue.executors.base import InvalidError, NotFoundError
from jobqueue.executors.confinement import docker_parameters
from jobqueue.executors.mesos.executor import JobsExecutor, Site, memory_of, ns_of, volumes_of
from jobqueue.executors.recorded import environment_of
from jobqueue.executors.scheduler_api import SchedulerAPI
from protocol.attempts import AttemptObservation, AttemptSpec, ObservedState

log = logging.getLogger(__name__)

Answer = dict[str, Any]

# 3.x first: a 2.x server answers 404 to it.
PREFIXES = ("/v1/scheduler", "/scheduler")
ONCE = "R1//PT24H"
NEVER = "R0//PT24H"
QUEUED, IDLE = "queued", "idle"
SEARCH_LIMIT = "1000000"


class ChronosExecutor(JobsExecutor):
    """Runs attempts through Chronos."""

    name = "chronos"
    names: Sequence[str] = (name,)

    title = "Chronos"
    _found_prefix = ""

    def _submit(self, spec: AttemptSpec) -> None:
        """Create the job if it is missing; posting it again would run it again."""
        name = self._job_name(spec.attempt_id)
        if not self._jobs(name):
            body = job_of(spec, self._site, name=name)
            self._api.request("POST", f"{self._prefix()}/iso8601", body=body)

    def _stop(self, attempt_id: str) -> None:
        """Disable the job so that nothing more starts, then kill what runs."""
        name = self._job_name(attempt_id)
        for job in self._jobs(name):
            if not job.get("disabled"):
                ended = {**job, "disabled": True, "schedule": NEVER}
                self._api.request("POST", f"{self._prefix()}/iso8601", body=ended)
            self._ignoring_missing("DELETE", f"/task/kill/{name}")

    def _delete(self, attempt_id: str) -> None:
        self._ignoring_missing("DELETE", f"/job/{self._job_name(attempt_id)}")

    def _read(self) -> Mapping[str, AttemptObservation]:
        """Read the jobs, what they do, and again the jobs that seem to have been killed.

        One may have ended between the first two reads: it was idle, and its end not yet noted.
        """
        prefix = self._job_name("")
        jobs = self._jobs(prefix)
        states = self._graph() if jobs else {}

        def observe(job: Answer) -> AttemptObservation:
            attempt_id = job["name"].removeprefix(prefix)
            return observe_job(attempt_id, job, states.get(job["name"], IDLE))

        observations = {seen.attempt_id: seen for seen in map(observe, jobs)}
        if any(seen.state is ObservedState.STOPPED for seen in observations.values()):
            later = {seen.attempt_id: seen for seen in map(observe, self._jobs(prefix))}
            for attempt_id, seen in observations.items():
                if seen.state is ObservedState.STOPPED and attempt_id in later:
                    observations[attempt_id] = later[attempt_id]
        return observations

    def _jobs(self, prefix: str) -> list[Answer]:
        params = {"name": prefix, "limit": SEARCH_LIMIT}
        jobs = self._api.get(f"{self._prefix()}/jobs/search", params)
        return [job for job in jobs if job["name"].startswith(prefix)]

    def _graph(self) -> dict[str, str]:
        """Return what each job does now: idle, queued, or how many tasks run."""
        text = self._api.request("GET", f"{self._prefix()}/graph/csv").text
        rows = [line.split(",") for line in text.splitlines()]
        return {row[1]: row[3] for row in rows if row[0] == "node" and len(row) > len("nns")}

    def _ignoring_missing(self, method: str, path: str) -> None:
        try:
            self._api.request(method, f"{self._prefix()}{path}")
        except InvalidError as error:  # Chronos answers 400 where others answer 404
            log.debug("%s", error)

    def _prefix(self) -> str:
        if not self._found_prefix:
            self._found_prefix = find_prefix(self._api)
        return self._found_prefix


def find_prefix(api: SchedulerAPI) -> str:
    """Return where this generation of Chronos has its API.

    Raises:
        ExecutorError: it does not answer, or has none of the known paths.
    """
    for prefix in PREFIXES[:-1]:
        try:
            api.get(f"{prefix}/jobs/search", {"name": "vedette", "limit": "1"})
        except NotFoundError:
            continue
        return prefix
    api.get(f"{PREFIXES[-1]}/jobs/search", {"name": "vedette", "limit": "1"})
    return PREFIXES[-1]


def job_of(spec: AttemptSpec, site: Site, *, name: str) -> Answer:
    """Return the definition of the job."""
    environment = environment_of(spec)
    parameters = docker_parameters(spec, pids_limit=site.pids_limit)
    if spec.gpu_uuids:
        parameters.append({"key": "runtime", "value": "nvidia"})
    environment["NVIDIA_VISIBLE_DEVICES"] = ",".join(spec.gpu_uuids) or "void"
    job: Answer = {
        "name": name,
        "description": spec.name,
        "schedule": ONCE,
        "shell": False,
        "command": spec.command[0],
        "arguments": list(spec.command[1:]),
        "cpus": spec.cpus,
        "mem": memory_of(spec),
        "disk": 0,
        "retries": 0,
        "disabled": False,
        "environmentVariables": [
            {"name": key, "value": value} for key, value in environment.items()
        ],
        "container": {
            "type": "DOCKER",
            "image": spec.image,
            "network": "BRIDGE",
            "forcePullImage": False,
            "parameters": parameters,
            "volumes": volumes_of(spec),
        },
    }
    if not site.is_anywhere:
        job["constraints"] = [["hostname", "EQUALS", site.hostname]]
    return job


def observe_job(attempt_id: str, job: Mapping[str, Any], state: str) -> AttemptObservation:
    """Return the observation of an attempt from its job and the state in the graph."""
    remaining = str(job.get("schedule", "")).partition("/")[0]
    if state.endswith(" running"):
        return AttemptObservation(attempt_id=attempt_id, state=ObservedState.RUNNING)
    if remaining != "R0" or state == QUEUED:
        message = "Waits in Chronos for an offer of the Mesos agent."
        return AttemptObservation(
            attempt_id=attempt_id, state=ObservedState.STARTING, message=message
        )
    succeeded, failed = job.get("lastSuccess") or "", job.get("lastError") or ""
    if not succeeded and not failed:
        return AttemptObservation(
            attempt_id=attempt_id,
            state=ObservedState.STOPPED,
            reason="stopped_outside",
            message="The run was killed in Chronos, not through the portal.",
        )
    has_succeeded = succeeded >= failed
    ended = succeeded if has_succeeded else failed
    return AttemptObservation(
        attempt_id=attempt_id,
        state=ObservedState.SUCCEEDED if has_succeeded else ObservedState.FAILED,
        finished_at_ns=ns_of(ended),
    )
