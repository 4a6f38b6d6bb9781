"""The health of services' containers, and the restart of unhealthy ones.

The pauses between restarts double until a check succeeds. A container that exits is restarted by
the engine, whose pauses double from 0.1 s to a minute.

Checks over HTTP and TCP come from the appliance through published ports: a thread for each checked
attempt probes it at its interval. Checks by command run in the container, by the engine itself.
"""

import logging
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from threading import Event, Lock, Thread
from typing import Any

import msgspec
import requests
from docker.errors import DockerException

from jobqueue.executors.docker import mapping
from protocol.attempts import AttemptObservation, Health
from protocol.job_spec import HealthCheck, HealthCheckKind

log = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS = 10.0
LONGEST_PAUSE_SECONDS = 300.0
# Between SIGTERM and SIGKILL.
STOP_GRACE_SECONDS = 10
# A published port accepts connections even if nothing listens in the container; then it closes
# them within this time.
CLOSED_WITHIN_SECONDS = 1.0
# The first status code that is a failure of an HTTP check.
FIRST_BAD_STATUS = 400


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


@dataclass(frozen=True, slots=True)
class Finding:
    """The health of an attempt, and what its last check found wrong."""

    health: Health
    problem: str = ""


class HealthChecks:
    """The checks of all attempts. Thread-safe."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._probers: dict[str, _Prober] = {}
        self._is_closed = False

    def check(
        self, attempt_id: str, check: HealthCheck, address: str, *, started_at_ns: int
    ) -> Finding:
        """Return what is known of an attempt; its checks start with the first call.

        Args:
            attempt_id: the attempt.
            check: over HTTP or TCP.
            address: where its port listens at present, such as `127.0.0.1:49153`.
            started_at_ns: the start of its container: after a new one it is checked afresh.
        """
        with self._lock:
            prober = self._probers.get(attempt_id)
            if prober is None or prober.target != (address, started_at_ns):
                if prober is not None:
                    prober.stopping.set()
                if self._is_closed:
                    return Finding(Health.UNKNOWN)
                prober = self._probers[attempt_id] = _Prober(check, (address, started_at_ns))
                prober.start()
            return prober.finding

    def forget(self, attempt_id: str) -> None:
        """Stop checking an attempt."""
        with self._lock:
            prober = self._probers.pop(attempt_id, None)
        if prober is not None:
            prober.stopping.set()

    def close(self) -> None:
        """Stop all checks."""
        with self._lock:
            self._is_closed = True
            for prober in self._probers.values():
                prober.stopping.set()


class _Prober(Thread):
    """Checks one start of a container until it is told to stop."""

    def __init__(self, check: HealthCheck, target: tuple[str, int]) -> None:
        super().__init__(name="health-check", daemon=True)
        self._check = check
        self.target = target
        self.stopping = Event()
        self.finding = Finding(Health.STARTING)

    def run(self) -> None:
        failures = 0
        grace_until = time.monotonic() + self._check.grace_seconds
        while not self.stopping.is_set():
            problem = probe(self._check, self.target[0])
            failures = failures + 1 if problem else 0
            health = self.finding.health
            if not problem:
                health = Health.HEALTHY
            elif health is Health.STARTING and time.monotonic() < grace_until:
                failures = 0
            elif failures >= self._check.max_failures:
                health = Health.UNHEALTHY
            self.finding = Finding(health, problem)
            self.stopping.wait(self._check.interval_seconds)


def probe(check: HealthCheck, address: str) -> str:
    """Check an address once; return what is wrong, or ""."""
    if check.kind is HealthCheckKind.HTTP:
        return _probe_http(check, address)
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), check.timeout_seconds) as connection:
            connection.settimeout(min(CLOSED_WITHIN_SECONDS, check.timeout_seconds))
            try:
                is_open = bool(connection.recv(1))
            except TimeoutError:
                is_open = True
    except OSError as error:
        return f"port {check.port}: {error.strerror or error}"
    return "" if is_open else f"port {check.port}: connection closed"


def _probe_http(check: HealthCheck, address: str) -> str:
    with requests.Session() as session:
        session.trust_env = False
        try:
            with session.get(
                f"http://{address}{check.path}",
                timeout=check.timeout_seconds,
                allow_redirects=False,
                stream=True,
            ) as response:
                status = response.status_code
        except requests.Timeout:
            return f"GET {check.path}: no answer within {check.timeout_seconds:g} s"
        except requests.RequestException:
            return f"GET {check.path}: no answer"
    return "" if status < FIRST_BAD_STATUS else f"GET {check.path}: status {status}"
