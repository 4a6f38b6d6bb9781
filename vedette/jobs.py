"""Jobs as the REST API describes them; a test compares them with the OpenAPI document."""

from datetime import datetime
from typing import Any

import msgspec

from core.errors import VedetteError
from protocol.job_spec import JobSpec

FINAL_STATES = frozenset({"succeeded", "failed", "stopped", "lost"})
SHORT_ID_LENGTH = 8


class Job(JobSpec, frozen=True, kw_only=True):
    """A job; fields of newer portals are ignored.

    Parts that may have more fields in newer portals are as in JSON.

    Attributes:
        reason: why it is in its state, such as `out_of_memory`; `message` says it in a sentence.
        exit_code: of the container; None while it runs, and if it never ran.
        array_id: the first task of its array, if it is in one.
        array_states: how many tasks are in each state, in a collapsed list.
        project: the name of the project that it counts towards.
        requested_gpus: in words, such as `2` or `8 GiB of a GPU`.
        attempt: the latest one; its `gpu_slice` is the part of a GPU that it has.
        requested_appliance_id: the only appliance that may run it.
        health: of a service with a health check, such as `healthy`; `restarts` of its container.
    """

    id: str
    kind: str
    state: str
    reason: str
    message: str
    container_policy: str
    submitted_at: datetime
    started_at: datetime | None = None
    finished_at: datetime | None = None
    exit_code: int | None = None
    user_email: str | None = None
    project_id: str | None = None
    project: str | None = None
    appliance_id: str | None = None
    appliance_name: str | None = None
    requested_gpus: str = ""
    requested_appliance_id: str | None = None
    attempt: dict[str, Any] | None = None
    mounts: list[dict[str, Any]] = []  # type: ignore[assignment]
    ports: list[dict[str, Any]] = []  # type: ignore[assignment]
    health_check: dict[str, Any] | None = None  # type: ignore[assignment]
    autoscaling: dict[str, Any] | None = None  # type: ignore[assignment]
    dependencies: list[dict[str, str]] = []
    array_id: str | None = None
    array_index: int | None = None
    array_size: int = 0
    array_limit: int = 0
    array_states: dict[str, int] = {}
    revision: int = 1
    health: str = ""
    restarts: int = 0
    secret_names: list[str] = []

    @property
    def title(self) -> str:
        """Its name, with its index in an array; in a collapsed list that of the array."""
        if self.array_states:
            noun = "instances" if self.kind == "service" else "tasks"
            noun = "members" if self.nodes > 1 else noun
            return f"{self.name}[{self.array_size} {noun}]"
        return self.name if self.array_index is None else f"{self.name}[{self.array_index}]"

    @property
    def short_id(self) -> str:
        """The end of its ID, which is unlike that of jobs submitted at the same time."""
        return self.id[-SHORT_ID_LENGTH:]

    @property
    def has_ended(self) -> bool:
        """Return whether its state is final."""
        return self.state in FINAL_STATES

    @property
    def exit_status(self) -> int:
        """The exit status for a shell: 0 for success, else the container's exit code or 1."""
        return 0 if self.state == "succeeded" else self.exit_code or 1


class LogLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line of a job's log.

    Attributes:
        at: time in UTC (RFC 3339); empty if it is not known.
        stream: `stdout`, `stderr`, or `output` if it is not known which.
        text: without the end of the line.
        is_open: the next line of this stream continues it.
    """

    at: str
    stream: str
    text: str
    is_open: bool = False


class JobFailedError(VedetteError):
    """A job did not succeed."""

    def __init__(self, job: Job) -> None:
        why = job.message or f"exit code {job.exit_code}"
        super().__init__(f"Job {job.name} ({job.short_id}) {job.state}: {why}")
        self.job = job
