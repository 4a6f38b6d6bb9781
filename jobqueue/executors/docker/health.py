"""The health of services' containers, and the restart of unhealthy ones.

The pauses between restarts double until a check succeeds. A container that exits is restarted by
the engine, whose pauses double from 0.1 s to a minute.
"""

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from threading import Thread
from typing import Any

import msgspec
import requests
from docker.errors import DockerException

from jobqueue.executors.docker import mapping
from jobqueue.executors.health_checks import HealthChecks
from protocol.attempts import AttemptObservation, Health
from protocol.job_spec import HealthCheckKind

log = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS = 10.0
LONGEST_PAUSE_SECONDS = 300.0
# Between SIGTERM and SIGKILL.
STOP_GRACE_SECONDS = 10


@dataclass(slots=True)
class _Restarts:
    count: int = 0
    in_a_row: int = 0
    due_at: float = 0.0
    thread: Thread | None = None
    seen: AttemptObservation | None = None


class ContainerHealth:
    """Checks running containers. For one thread."""

    def __init__(self) -> None:
        self._checks = HealthChecks()
        self._restarts: dict[str, _Restarts] = {}

    def restarting(self) -> Mapping[str, AttemptObservation]:
        """Return the attempts that are being restarted, as last seen: they have not ended."""
        return {
            attempt_id: msgspec.structs.replace(restarts.seen, health=Health.RESTARTING)
            for attempt_id, restarts in self._restarts.items()
            if restarts.seen is not None
            and restarts.thread is not None
            and restarts.thread.is_alive()
        }

    def observed(self, seen: AttemptObservation, container: Any) -> AttemptObservation:  # noqa: ANN401 - untyped SDK object
        """Return the observation of a running attempt with its health; restart an unhealthy one."""
        check = mapping.health_check_of(container.attrs)
        if check is None:
            return seen
        address = mapping.check_address(container.attrs, check)
        if check.kind is not HealthCheckKind.COMMAND and address:
            result = self._checks.check(
                seen.attempt_id, check, address, started_at_ns=seen.started_at_ns or 0
            )
            message = f"Health check: {result.problem}." if result.problem else ""
            seen = msgspec.structs.replace(seen, health=result.health, message=message)
        restarts = self._restarts.setdefault(seen.attempt_id, _Restarts())
        now = time.monotonic()
        if restarts.thread is not None and not restarts.thread.is_alive():
            pause = FIRST_PAUSE_SECONDS * 2 ** min(restarts.in_a_row, 10)
            restarts.due_at = now + min(pause, LONGEST_PAUSE_SECONDS)
            restarts.in_a_row += 1
            restarts.thread = None
        if seen.health is Health.UNHEALTHY and restarts.thread is None and now >= restarts.due_at:
            restarts.count += 1
            log.warning("restarting attempt %s: %s", seen.attempt_id, seen.message)
            restarts.thread = Thread(target=_restart, args=(container,), daemon=True)
            restarts.thread.start()
        if seen.health is Health.HEALTHY:
            restarts.in_a_row = 0
        restarts.seen = msgspec.structs.replace(seen, restarts=seen.restarts + restarts.count)
        return restarts.seen

    def forget(self, attempt_id: str) -> None:
        """Stop checking an attempt."""
        self._checks.forget(attempt_id)
        self._restarts.pop(attempt_id, None)

    def close(self) -> None:
        """Stop all checks."""
        self._checks.close()


def _restart(container: Any) -> None:  # noqa: ANN401 - untyped SDK
    try:
        container.restart(timeout=STOP_GRACE_SECONDS)
    except (DockerException, requests.RequestException) as error:
        log.warning("can't restart container %s: %s", container.name, error)
