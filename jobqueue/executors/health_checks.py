"""Health checks of containers over HTTP and TCP, from the appliance through published ports.

A thread for each checked attempt probes it at its interval. Checks by command run in the container,
by the engine itself.
"""

import socket
import time
from dataclasses import dataclass
from threading import Event, Lock, Thread

import requests

from protocol.attempts import Health
from protocol.job_spec import HealthCheck, HealthCheckKind

# A published port accepts connections even if nothing listens in the container; then it closes
# them within this time.
CLOSED_WITHIN_SECONDS = 1.0
# The first status code that is a failure of an HTTP check.
FIRST_BAD_STATUS = 400


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
